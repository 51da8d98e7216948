"""Which cells a build runs: by tier, by change, by name; nothing selected in silence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.selection import Request, choose, digests, read_selection
from ci.settings import Commands, read_settings
from matrix.loader import load
from matrix.problem import MatrixError, SelectionError
from tests.ci.conftest import write_settings
from tests.ci.tree import IMAGES, example_tree

SETTINGS = read_settings()


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A git checkout around the example tree; returns the tree's root."""
    root = example_tree(tmp_path)
    git(root.parent, "init", "-q", "-b", "main")
    git(root.parent, "add", ".")
    git(root.parent, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    return root


def git(where: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=where, check=True, capture_output=True)


def change(root: Path, name: str) -> None:
    path = root.parent / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed")


def asked(root: Path, tier: str = "pr") -> Request:
    return Request(tier=tier, changed_since="main", images=IMAGES)


def test_a_change_selects_the_cells_it_can_break_with_the_reason(checkout):
    change(checkout, "vime/platforms/npu.py")
    selected = choose(load(checkout), asked(checkout), SETTINGS)
    assert [cell.cell for cell in selected.cells] == ["qwen3-4b.a2.colocate", "qwen3-4b.a3.colocate"]
    assert selected.cells[0].because == ["vime/platforms/npu.py (NPU platform): only NPU runs pass through it"]
    assert "qwen3-4b.cpu.colocate" in [cell.cell for cell in selected.offered]


def test_a_change_of_documentation_selects_none_and_says_why(checkout):
    change(checkout, "docs/a.md")
    selected = choose(load(checkout), asked(checkout), SETTINGS)
    assert (selected.cells, selected.nothing) == ([], ["docs/a.md: documentation changes no behaviour"])


def test_cells_of_other_tiers_alone_are_told(checkout):
    change(checkout, "matrix/hardware/h200.yaml")
    (checkout / "hardware" / "h200.yaml").write_text((Path(load().root) / "hardware" / "h200.yaml").read_text() + "\n")
    selected = choose(load(checkout), asked(checkout), SETTINGS)
    assert selected.nothing == ["1 other cells are affected, none of tier pr among them: qwen3-4b.h200.non-colocate"]


def test_no_change_at_all_is_an_error(checkout):
    with pytest.raises(SelectionError, match="nothing changed since main, so no cell is selected"):
        choose(load(checkout), asked(checkout), SETTINGS)


def test_an_unknown_revision_is_an_error(checkout):
    with pytest.raises(SelectionError, match="is the revision fetched"):
        choose(load(checkout), Request(tier="pr", changed_since="nowhere"), SETTINGS)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(tier="nigthly"), "no tier 'nigthly' is declared; nearest: nightly"),
        (Request(tier="release"), "no cell is declared for tier release on any hardware"),
        (Request(tier="pr", hardware=("a9",)), "no hardware 'a9' is declared"),
        (Request(tier="pr", hardware=("h200",)), "no cell is declared for tier pr on h200"),
        (Request(cells=("qwen3-4b.cpu.colocat",)), "no cell 'qwen3-4b.cpu.colocat' is declared; nearest: qwen3-4b.cpu.colocate"),
        (Request(tier="smoke", cells=("qwen3-4b.a2.colocate",)), "qwen3-4b.a2.colocate: not in tier smoke"),
    ],
)
def test_what_selects_nothing_is_an_error(checkout, request_, message):
    with pytest.raises(SelectionError, match=message):
        choose(load(checkout), request_, SETTINGS)


def test_a_tier_over_its_budget_is_refused(checkout):
    tiers = checkout / "tiers.yaml"
    tiers.write_text(tiers.read_text().replace("device_hours: 60", "device_hours: 1"))
    with pytest.raises(SelectionError, match="tier pr takes .* device-hours, its budget is 1"):
        choose(load(checkout), Request(tier="pr", images=IMAGES), SETTINGS)


def test_a_single_cell_by_name_runs_with_no_budget(checkout):
    selected = choose(load(checkout), Request(cells=("qwen3-4b.a3.non-colocate",), images=IMAGES), SETTINGS)
    assert [cell.cell for cell in selected.cells] == ["qwen3-4b.a3.non-colocate"]
    assert selected.budget is None
    assert selected.cells[0].more == [101, 102]


def test_a_cell_on_several_machines_is_excluded_with_the_reason():
    selected = choose(load(), Request(tier="weekly", images={**IMAGES, "vime-npu-a3-superpod": f"sha256:{'9' * 64}"}), SETTINGS)
    assert any("the runner leases the devices of one" in entry.reason for entry in selected.excluded)


@pytest.mark.parametrize("text", ["vime-cuda", "vime-cuda=latest", "vime-cuda=sha256:12", "vime-cuda:tag"])
def test_an_image_is_named_by_digest(text):
    with pytest.raises(SelectionError, match="a tag may be another image tomorrow"):
        digests([text])


def test_a_selection_file_that_is_missing_or_something_else(tmp_path):
    with pytest.raises(SelectionError, match="no such file"):
        read_selection(tmp_path / "x.json")
    (tmp_path / "x.json").write_text('{"tier": 3}')
    with pytest.raises(SelectionError, match="no selection: tier"):
        read_selection(tmp_path / "x.json")


# ---- settings ---------------------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qeue": "x"}, "unknown key 'qeue'; nearest: queue"),
        ({"retries": 11}, "retries"),
        ({"upload_limit": "many"}, "many is text; a whole number is wanted"),
        ({"status": {"context": "x", "url": "http://h/", "secret": None}}, "status.url and status.secret go together"),
        ({"platforms": {}}, "platforms.cpu is missing"),
    ],
)
def test_settings_are_read_strictly(tmp_path, fakes, changes, message):
    path = write_settings(tmp_path / "s.yaml", fakes, **changes)
    with pytest.raises(MatrixError, match=message):
        read_settings(path)


def test_command_templates_are_held_to_their_placeholders():
    with pytest.raises(ValueError, match="has the placeholder {sed}"):
        Commands(cell="{python} {cell} {sed} {results}", verdict="{cell} {results}", report="x")
    with pytest.raises(ValueError, match="must hold {cell}"):
        Commands(cell="{python} {results}", verdict="{cell} {results}", report="x")


def test_a_tier_without_settings_is_an_error():
    with pytest.raises(MatrixError, match="tiers has no 'yearly'"):
        SETTINGS.tier("yearly")
