"""Pipelines as data: golden files, Buildkite's schema, the rules that it cannot say, limits, keys, escaping."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ci.keys import KEY, MAX, judge_key, run_key
from ci.local.interpolate import interpolated
from ci.pipeline import build, escaped, finish, flat, jobs_of, keys_of, split
from ci.selection import CellSteps, Excluded, Request, Selected, choose
from ci.settings import read_settings
from ci.validate import PipelineError, check, needs
from matrix.cell_id import key
from matrix.loader import load
from tests.ci.golden import FOLDER, TIERS, generated
from tests.ci.tree import IMAGES, example_tree

ROOT = Path(__file__).parents[2]
SETTINGS = read_settings()
EVERY = {**IMAGES, "vime-npu-a3-superpod": f"sha256:{'9' * 64}"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    return example_tree(tmp_path_factory.mktemp("tree"))


@cache
def real(tier: str) -> tuple[Selected, list[dict[str, Any]]]:
    selected = choose(load(), Request(tier=tier, images=EVERY), SETTINGS)
    return selected, finish(build(selected, SETTINGS), SETTINGS)


@pytest.mark.parametrize("tier", TIERS)
def test_the_pipeline_is_the_golden_one(tree, tier):
    golden = json.loads((FOLDER / f"{tier}.json").read_text())
    assert generated(tier, tree) == golden, "python -m tests.ci.golden writes the golden files anew"


@pytest.mark.parametrize("tier", ["smoke", "pr", "nightly", "weekly", "release"])
def test_the_checkouts_tiers_make_valid_pipelines_that_hold_every_cell(tier):
    selected, parts = real(tier)
    steps = [step for part in parts for step in flat(part)]
    ran = {step["key"] for step in steps if step.get("key", "").startswith("run:")}
    declared = {cell.key for cell in load().select(tier=tier)}
    assert ran == {run_key(cell.key, seed) for cell in selected.cells for seed in cell.seeds}
    assert {cell.key for cell in selected.cells} | {key(entry.cell) for entry in selected.excluded} == declared
    assert all(entry.reason for entry in selected.excluded)
    assert sum(jobs_of(step) for part in parts for step in part["steps"]) >= len(ran)
    assert all(sum(jobs_of(step) for step in part["steps"]) <= 500 for part in parts)


def test_a_cells_step_has_all_that_the_issue_of_it_says(tree):
    selected = choose(load(tree), Request(tier="nightly", images=IMAGES), SETTINGS)
    (part,) = finish(build(selected, SETTINGS), SETTINGS)
    step = next(step for step in flat(part) if step.get("key") == "run:qwen3-4b.a3.colocate:100")
    assert step["agents"] == {"queue": "npu-a3", "devices": "8"}
    assert step["env"] == {"VIME_DEVICES": "8", "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "VIME_IMAGE": step["image"]}
    assert step["image"] == f"vime-npu-a3@sha256:{'3' * 64}"
    assert (step["concurrency_group"], step["concurrency"]) == ("vime/npu-a3/8", 10)  # 5 machines of 16
    assert [rule["exit_status"] for rule in step["retry"]["automatic"]] == [-1, 13]
    assert [rule["exit_status"] for rule in step["soft_fail"]] == [-1, 1, 10, 11, 12, 13, 15, 16]
    assert step["timeout_in_minutes"] == 180 + 2 * 40 + 15  # the run's limit, twice the limit of a start that is made again, the margin
    assert "--seeds 100 --no-judge" in step["command"][-1]


def test_a_pull_requests_cells_wait_for_lint_and_unit_and_a_nights_do_not(tree):
    for tier, want in (("pr", ["lint", "unit"]), ("nightly", ["pipeline"])):
        selected = choose(load(tree), Request(tier=tier, images=IMAGES), SETTINGS)
        steps = flat(finish(build(selected, SETTINGS), SETTINGS)[0])
        assert {tuple(needs(step)) for step in steps if step.get("key", "").startswith("run:")} == {tuple(want)}


def test_unselected_cells_stand_behind_one_block_step(tree):
    selected = choose(load(tree), Request(tier="pr", images=IMAGES), SETTINGS)
    steps = flat(finish(build(selected, SETTINGS), SETTINGS)[0])
    (block,) = [step for step in steps if "block" in step]
    options = [option["value"] for option in block["fields"][0]["options"]]
    assert "qwen3-4b.a3.non-colocate" in options
    assert not {cell.key for cell in selected.cells} & set(options)
    assert block["fields"][0]["multiple"] is True
    assert [step["key"] for step in steps if block["key"] in needs(step)] == ["release"]


def test_an_image_that_is_not_built_keeps_its_cells_out_with_the_reason(tree):
    selected = choose(load(tree), Request(tier="pr"), SETTINGS)
    assert {cell.platform for cell in selected.cells} == {"cpu"}
    assert {entry.cell: entry.reason.split(":")[0] for entry in selected.excluded} == {
        "qwen3-4b.a2.colocate": "image vime-npu-a2 is unbuilt",
        "qwen3-4b.a3.colocate": "image vime-npu-a3 is unbuilt",
    }


def test_nothing_of_the_environment_gets_into_a_pipeline(tmp_path):
    environment = {**os.environ, "GITHUB_TOKEN": "ghp_very_secret", "VIME_PASSWORD": "ghp_very_secret"}
    done = subprocess.run([sys.executable, "-m", "ci", "pipeline", "--tier", "smoke"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "ghp_very_secret" not in done.stdout
    assert "run:qwen3-4b.cpu.colocate:100" in done.stdout


def test_generating_again_changes_nothing(tree):
    assert generated("nightly", tree) == generated("nightly", tree)


# ---- keys -------------------------------------------------------------------------------------------------------------------------------------------
LONG = "a" * 90


@given(st.lists(st.tuples(st.text("ab._-", min_size=1, max_size=100), st.integers(0, 10**6)), unique=True, min_size=2, max_size=8))
def test_keys_of_steps_never_collide_and_fit(cells):
    keys = [make(cell, number) for cell, number in cells for make in (run_key, judge_key)]
    assert len(set(keys)) == len(keys)
    assert all(len(one) <= MAX and KEY.fullmatch(one) for one in keys)


def test_long_cells_that_differ_at_their_end_keep_apart():
    first, second = run_key(f"{LONG}.cpu.x", 100), run_key(f"{LONG}.cpu.y", 100)
    assert first != second
    assert len(first) <= MAX


# ---- escaping ---------------------------------------------------------------------------------------------------------------------------------------
TEXTS = st.text(st.sampled_from("$A{}:-?\\ 'é\n")) | st.text()


@given(st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("k"), inner), max_leaves=6))
def test_bytes_arrive_unchanged_through_an_upload(value):
    assume("\\$" not in str(value).replace("\\\\", "\\"))  # refused, below
    assert interpolated(escaped(value), {"HOME": "/root", "A": "x"}) == value


def test_a_dollar_of_a_command_arrives(local, tmp_path):
    text = "costs $5, $HOME ${A:-b} $$ \\ `x`"
    steps = {"steps": [{"key": "x", "command": f"cat > {tmp_path}/got <<'E'\n{text}\nE"}]}
    (tmp_path / "p.json").write_text(json.dumps(finish(steps, SETTINGS)[0]))
    local({"key": "up", "command": f"buildkite-agent pipeline upload {tmp_path}/p.json"})
    assert (tmp_path / "got").read_text() == text + "\n"


# ---- what is refused --------------------------------------------------------------------------------------------------------------------------------
GOOD = {
    "steps": [
        {"key": "a", "command": "true"},
        {"key": "b", "command": "true", "depends_on": ["a"], "env": {"ASCEND_RT_VISIBLE_DEVICES": "0,1", "VIME_DEVICES": "2"}, "agents": {"devices": "2"}},
    ]
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timeout_in_minutes": "abc"}, "step b: timeout_in_minutes: 'abc' is not of type 'integer'"),
        ({"timeout_in_minutes": 0}, "step b: timeout_in_minutes: 0 is less than the minimum of 1"),
        ({"nonsense": 1}, "step b: Additional properties are not allowed"),
        ({"key": "a"}, "two steps have the key a"),
        ({"key": "b+c"}, "step b\\+c: key"),
        ({"key": "b$c"}, "the key has characters that would be interpolated"),
        ({"depends_on": ["nobody"]}, "step b: depends on nobody, which no step before it has"),
        ({"command": "echo \\$HOME"}, "step b: a backslash before a dollar sign"),
        ({"concurrency": 2}, "concurrency and concurrency_group go together"),
        ({"env": {"API_TOKEN": "x"}}, "API_TOKEN is set in the pipeline, for everybody to read"),
        ({"env": {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3", "VIME_DEVICES": "2"}}, "names 4 devices, its agents have class 2"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0", "VIME_DEVICES": "2"}}, "names 1 devices, its agents have class 2"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0,0", "VIME_DEVICES": "2"}}, "the two must agree"),
        ({"soft_fail": [{"exit_status": "x"}]}, "step b"),
        ({"retry": {"automatic": [{"exit_status": 1, "limit": 11}]}}, "step b"),
    ],
)
def test_a_bad_step_is_named(change, message):
    check(GOOD, set())
    bad = copy.deepcopy(GOOD)
    bad["steps"][1] |= change
    with pytest.raises(PipelineError, match=message):
        check(bad, set())


def test_a_pipeline_without_steps_is_refused():
    with pytest.raises(PipelineError, match="no steps"):
        check({"steps": []}, set())


# ---- the limit of an upload -------------------------------------------------------------------------------------------------------------------------
def test_jobs_are_counted_as_buildkite_does():
    assert jobs_of({"group": "g", "steps": [{"command": "x", "parallelism": 3}, {"command": "y"}, {"wait": None}]}) == 6
    assert jobs_of("wait") == 1


def many(count: int, limit: int) -> list[dict[str, Any]]:
    cell = choose(load(), Request(cells=("qwen3-4b.cpu.colocate",)), SETTINGS).cells[0]
    cells = [cell.model_copy(update={"cell": f"m{n}.cpu.colocate", "key": f"m{n}.cpu.colocate"}) for n in range(count)]
    settings = SETTINGS.model_copy(update={"upload_limit": limit})
    return finish(build(Selected(tier="nightly", build="b", cells=cells), settings), settings)


@pytest.mark.parametrize(("count", "limit"), [(300, 500), (260, 500), (40, 10)])
def test_more_jobs_than_an_upload_takes_are_split_in_an_order_that_resolves(count, limit):
    parts = many(count, limit)
    assert len(parts) > 1
    known = {"pipeline"}
    for part in parts:
        assert sum(jobs_of(step) for step in part["steps"]) <= limit
        check(part, known)
        known |= set(keys_of(part))
    assert sum(one.startswith("run:") for one in known) == sum(one.startswith("judge:") for one in known) == count


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(4, 9), st.booleans())
def test_splitting_loses_nothing_and_keeps_the_order(sizes, limit, grouped):
    numbers = iter(range(1000))
    steps: list[dict[str, Any]] = []
    for size in sizes:
        inner = [{"key": f"s{next(numbers)}", "command": "x", "parallelism": 1 + size % 3} for _ in range(size)]
        steps += [{"group": f"g{size}", "steps": inner}] if grouped else inner
    parts = split({"steps": steps}, limit)
    assert [one for part in parts for one in keys_of(part)] == keys_of({"steps": steps})
    assert all(0 < sum(jobs_of(step) for step in part["steps"]) <= limit for part in parts)


def test_a_step_that_alone_is_too_many_is_refused():
    with pytest.raises(PipelineError, match="step x has 9 jobs; 5 is the limit"):
        split({"steps": [{"key": "x", "command": "y", "parallelism": 9}]}, 5)


def test_a_build_without_cells_says_why_in_a_step():
    selected = Selected(tier="pr", build="b", cells=[], excluded=[Excluded(cell="x.a2.y", reason="no image, it's $5")], nothing=["docs/a.md: documentation"])
    steps = flat(finish(build(selected, SETTINGS), SETTINGS)[0])
    (told,) = [step for step in steps if step.get("key") == "no-cells"]
    out = subprocess.run(["bash", "-c", "\n".join(told["command"]).replace("$$", "$")], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["docs/a.md: documentation", "x.a2.y cannot run: no image, it's $5"]


def test_the_command_line_imports_nothing_heavy():
    code = "import sys, ci.cli; print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'ray', 'vllm', 'scipy', 'pandas', 'numpy'}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_cells_of_a_selection_know_what_they_are_given():
    selected, _ = real("nightly")
    assert all(cell.needed <= cell.devices for cell in selected.cells)
    assert isinstance(selected.cells[0], CellSteps)
