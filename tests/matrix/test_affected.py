"""Selection by change: the map covers the checkout, each kind of path selects what it can break, and nothing selects in silence."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.affected import UNKNOWN, affected, changed_paths, compiled, read_selection, selection_problems
from matrix.checks import check
from matrix.loader import ROOT, load
from matrix.problem import MatrixError, SelectionError
from tests.matrix.test_cli import matrix as run_matrix
from tests.matrix.tree import edit

MATRIX = load(ROOT)
AREAS = read_selection(MATRIX).value.areas
SOURCES = ("vime", "matrix", "e2e", "reports", "ci", "tests", "benchmarks", "examples", "constraints", "docs")


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT.parent, capture_output=True, text=True, check=True)
    return [path for path in done.stdout.splitlines() if path]


def cells(*paths: str) -> set[str]:
    return set(affected(MATRIX, paths).reasons)


def test_every_folder_of_sources_is_claimed():
    """A new folder under vime/ belongs to an area that says what it can break: add it to matrix/selection.yaml."""
    folders = {str(PurePosixPath(path).parent) for path in tracked() if path.split("/")[0] in SOURCES and "/" in path}
    unclaimed = [folder for folder in sorted(folders) if not any(compiled(pattern).fullmatch(f"{folder}/x.py") for area in AREAS for pattern in area.paths)]
    assert unclaimed == []


def test_every_file_of_sources_is_claimed():
    """A file at the top of the checkout may be unknown: it then selects the smoke tier, as it should."""
    assert list(affected(MATRIX, [path for path in tracked() if path.split("/")[0] in SOURCES]).unknown) == []


def test_every_pattern_that_names_a_file_still_has_one():
    files = tracked()
    patterns = [pattern for area in AREAS for pattern in area.paths if not pattern.endswith("**") and "*" not in pattern and "{" not in pattern]
    assert [pattern for pattern in patterns if pattern not in files] == []


@pytest.mark.parametrize("path", ["docs/matrix.md", "README.md", "docs/images/curve.svg", "CHANGELOG.md", "LICENSE"])
def test_documentation_selects_a_stated_none(path: str):
    found = affected(MATRIX, [path])
    assert (found.reasons, found.none) == ({}, {path: "documentation changes no behaviour"})


@pytest.mark.parametrize("path", ["something/new.py", "Dockerfile", "vime-extra/a.py"])
def test_an_unknown_path_selects_the_smoke_tier_and_says_so(path: str):
    found = affected(MATRIX, [path])
    assert set(found.reasons) == {str(cell) for cell in MATRIX.select(tier="smoke")}
    assert all(UNKNOWN in reason for reasons in found.reasons.values() for reason in reasons)
    assert found.unknown == (path,)


def test_a_platform_selects_its_cells_alone():
    assert {MATRIX.cell(cell).hardware.value.platform for cell in cells("vime/platforms/npu.py")} == {"npu"}
    assert {MATRIX.cell(cell).hardware.value.platform for cell in cells("vime/platforms/cpu_vllm.py")} == {"cpu"}
    assert {MATRIX.cell(cell).hardware.value.platform for cell in cells("vime/platforms/accelerator.py")} == {"cuda", "npu"}


def test_a_family_selects_its_models():
    assert {MATRIX.cell(cell).model.value.family for cell in cells("vime/models/qwen3_5.py")} == {"qwen3-5", "qwen3-5-moe"}
    assert {MATRIX.cell(cell).id.model for cell in cells("vime/models/minimax_m2.py")} == {"minimax-m2.5"}


def test_a_transport_selects_its_modes():
    assert all("colocate" in MATRIX.cell(cell).id.settings for cell in cells("vime/weights/transports/ipc.py"))
    assert all("disk" in MATRIX.cell(cell).id.settings for cell in cells("vime/weights/transports/disk.py"))


def test_a_declaration_selects_what_it_declares():
    assert {MATRIX.cell(cell).id.model for cell in cells("matrix/models/qwen3-8b.yaml")} == {"qwen3-8b"}
    assert {MATRIX.cell(cell).id.hardware for cell in cells("matrix/hardware/a2.yaml")} == {"a2"}
    assert {MATRIX.cell(cell).recipe.value.name for cell in cells("matrix/recipes/math-smoke-128k.yaml")} == {"math-smoke-128k"}
    assert cells("matrix/cells/llama-3.yaml") == {cell for cell in MATRIX.cells if cell.startswith("llama-3.")}


def test_the_loop_selects_every_cell_and_reasons_add_up():
    found = affected(MATRIX, ["vime/loop/sync.py", "vime/models/llama.py"])
    assert set(found.reasons) == set(MATRIX.cells)
    assert len(found.reasons["llama-3.a3.non-colocate"]) == 2
    assert found.reasons["qwen3-4b.cpu.colocate"] == ("vime/loop/sync.py (loop): the driver of every run",)


def test_no_path_at_all_selects_nothing():
    assert affected(MATRIX, []).lines() == ["nothing changed: no cell is selected"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["vime/loop/x.py", "docs/a.md", "weird", "vime/models/llama.py", "tests/a/b.py"]), max_size=5))
def test_more_changes_never_select_less(paths: list[str]):
    assert cells(*paths[:-1]) <= cells(*paths)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("docs/**", "docs/a/b.md", True),
        ("*.md", "README.md", True),
        ("*.md", "docs/README.md", False),
        ("vime/*", "vime/cli.py", True),
        ("vime/*", "vime/loop/sync.py", False),
        ("a/**/b.py", "a/b.py", True),
        ("a/**/b.py", "a/x/y/b.py", True),
        ("vime/a.py", "vimeXa.py", False),
        ("matrix/models/{model}.yaml", "matrix/models/glm-4.7-flash.yaml", True),
        ("matrix/models/{model}.yaml", "matrix/models/x/y.yaml", False),
    ],
)
def test_patterns(pattern: str, path: str, matches: bool):
    assert bool(compiled(pattern).fullmatch(path)) is matches


# ---- the file's own faults -------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def selected(tree: Path) -> Path:
    (tree / "selection.yaml").write_text(
        "unknown_tier: smoke\nareas:\n  - name: qwen\n    paths: [vime/q.py]\n    because: its table\n    families: [qwen3]\n"
        "  - {name: docs, paths: [docs/**], because: words, none: true}\n"
    )
    return tree


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("families: [qwen3]", "families: [qwen4]", "families names 'qwen4', which nothing declares; nearest: qwen3"),
        ("families: [qwen3]", "settings: [colocat]", "settings names 'colocat', which nothing declares; nearest: "),
        ("families: [qwen3]", "tier: smok", "tier names 'smok', which nothing declares; nearest: smoke"),
        ("families: [qwen3]", "platforms: [gpu]", "'gpu' is none of cpu, cuda, npu"),
        ("families: [qwen3]", "familes: [qwen3]", "unknown key 'areas.0.familes'; nearest: families"),
        ("unknown_tier: smoke", "unknown_tier: smok", "no tier 'smok'; nearest: smoke"),
        ("name: docs", "name: qwen", "there are two areas 'qwen': join them"),
        ("none: true", "none: true, tier: smoke", "an area that selects none has no filter"),
    ],
)
def test_a_map_that_names_what_is_not_there_is_refused(selected: Path, old: str, new: str, said: str):
    edit(selected, "selection.yaml", old, new)
    found = [str(problem) for problem in check(load(selected)) if "selection.yaml" in str(problem)]
    assert len(found) == 1
    assert said in found[0]
    assert re.search(r"selection\.yaml:[1-7]: ", found[0])


def test_a_good_map_has_no_fault_and_a_tree_without_one_says_so(selected: Path):
    assert list(selection_problems(load(selected))) == []
    (selected / "selection.yaml").unlink()
    with pytest.raises(SelectionError, match="selection.yaml is missing"):
        affected(load(selected), ["x"])


def test_a_broken_map_is_a_fault_of_the_declarations(selected: Path):
    (selected / "selection.yaml").write_text("areas: []\n")
    with pytest.raises(MatrixError, match="unknown_tier"):
        affected(load(selected), ["x"])


# ---- git --------------------------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(selected: Path) -> Path:
    """The tree in a git repository of its own, one commit in."""
    checkout = selected.parent
    (checkout / "docs").mkdir()
    (checkout / "docs" / "a.md").write_text("a\n")
    git(checkout, "init", "--quiet", "--initial-branch=main")
    git(checkout, "add", "-A")
    commit(checkout)
    return checkout


def git(checkout: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=checkout, check=True, capture_output=True)


def commit(checkout: Path) -> None:
    git(checkout, "commit", "--quiet", "-am", "x")


def test_changes_are_those_since_the_branch_left_renames_both_ways_new_files_included(repository: Path):
    git(repository, "checkout", "--quiet", "-b", "work")
    shutil.move(repository / "docs/a.md", repository / "docs/b.md")
    (repository / "öd name.txt").write_text("new\n")
    git(repository, "add", "docs")
    commit(repository)
    git(repository, "checkout", "--quiet", "main")
    (repository / "elsewhere").write_text("main goes on\n")
    git(repository, "add", "elsewhere")
    commit(repository)
    git(repository, "checkout", "--quiet", "work")
    assert changed_paths(repository, "main") == ["docs/a.md", "docs/b.md", "öd name.txt"]


def test_a_revision_that_is_not_there_is_git_s_error_in_one_line(repository: Path):
    with pytest.raises(SelectionError, match="is the revision fetched"):
        changed_paths(repository, "origin/nowhere")


def test_a_plan_of_a_documentation_change_is_a_stated_none(repository: Path):
    (repository / "docs" / "a.md").write_text("b\n")
    done = run_matrix("plan", "--tier", "smoke", "--changed-since", "main", root=repository / "matrix")
    assert (done.returncode, done.stdout.strip()) == (0, "docs/a.md selects none: words")
    done = run_matrix("plan", "--tier", "smoke", "--changed-since", "main", "--json", root=repository / "matrix")
    assert json.loads(done.stdout) == {"cells": [], "none": {"docs/a.md": "words"}, "reasons": {}}


def test_a_plan_of_a_code_change_gives_the_reason_for_each_cell(repository: Path):
    (repository / "vime").mkdir()
    (repository / "vime" / "q.py").write_text("x = 1\n")
    done = run_matrix("plan", "--tier", "smoke", "--changed-since", "main", "--json", root=repository / "matrix")
    told = json.loads(done.stdout)
    assert [cell["cell"] for cell in told["cells"]] == ["qwen3-4b.cpu.colocate", "qwen3-4b.cpu.non-colocate"]
    assert told["reasons"]["qwen3-4b.cpu.colocate"] == ["vime/q.py (qwen): its table"]
    assert told["budget_device_hours"] == 0.2


def test_without_git_or_its_repository_the_mend_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(SelectionError, match="is no git repository: name the changed paths with"):
        changed_paths(tmp_path, "HEAD")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SelectionError, match="No such file or directory: 'git'; install git, or name the changed paths"):
        changed_paths(tmp_path, "HEAD")
