"""Each kind of fault of the declarations, by example: one line with file, line, value and mend."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.cell_id import CellId
from matrix.checks import check
from matrix.declarations import Modes
from matrix.fragments import compose
from matrix.loader import ROOT, load, read_tree
from matrix.mode_rules import ModeRules
from tests.matrix.tree import CELL, CELLS, MODEL, edit, line_of, record

TODAY = date(2026, 6, 1)
A2 = """name: a2
title: Atlas 800T A2
platform: npu
devices_per_node: 8
device_memory_gib: 64.0
visible_devices: ASCEND_RT_VISIBLE_DEVICES
ray_resource: NPU
twins: false
buildkite: {queue: npu-a2, classes: [2, 4, 8]}
image: {name: vime-npu, digest: unbuilt}
version_set: cann
limits: {start_s: 60, stall_s: 60, wall_s: 600}
config:
  platform: npu
"""
VERSIONS = "version_sets:\n  - {name: cann, summary: one set, versions: {vllm: 0.23.0, megatron-core: 0.16.1}}\n"


@pytest.fixture
def npu_tree(tree: Path) -> Path:
    (tree / "hardware/a2.yaml").write_text(A2)
    (tree / "versions.yaml").write_text(VERSIONS)
    return tree


def only(root: Path) -> str:
    _, problems = read_tree(root, TODAY)
    assert len(problems) == 1, problems
    return str(problems[0])


def test_a_broken_list_of_versions_is_one_fault_not_one_for_every_machine(npu_tree: Path):
    edit(npu_tree, "versions.yaml", "vllm: 0.23.0", "vllm: 1.10")
    assert 'versions.yaml:2: version_sets.0.versions.vllm: 1.10 is read as a number (1.1): write "1.10" in quotes' in only(npu_tree)


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ("image: {name: vime-npu, digest: unbuilt}\n", "", "image must be said of a npu machine", 1),
        ("digest: unbuilt", "digest: latest", "'latest' is", 10),
        (", digest: unbuilt", "", "'digest' is missing in image: add it", 10),
        ("device_memory_gib: 64.0\n", "", "device_memory_gib must be said of a npu machine", 1),
        ("ray_resource: NPU", "ray_resource: GPU", "ray_resource is GPU, platform npu has NPU", 1),
        ("classes: [2, 4, 8]", "classes: [2, 4, 16]", "ascending sizes of at most devices_per_node (8)", 1),
        ("classes: [2, 4, 8]", "classes: [8, 4]", "ascending sizes of at most devices_per_node (8)", 1),
        ("version_set: cann", "version_set: cann-9", "versions.yaml has no set 'cann-9'; nearest: cann", 11),
        ("version_set: cann\n", "", "exactly one of version_set", 1),
        ("version_set: cann", "version_set: cann\nversions: {vllm: 0.23.0}", "exactly one of version_set", 1),
        ("version_set: cann", "version_set: cann\nalternatives: [cuda]", "versions.yaml has no set 'cuda'; known: cann", 12),
        ("limits:", "environment: {VLLM_ASCEND_ENABLE_NZ: 0}\nlimits:", 'write "0" in quotes for text', 12),
        ("chip", "chip", "", 0),
    ],
)
def test_a_machine_that_is_not_fully_said_is_refused(npu_tree: Path, old: str, new: str, said: str, line: int):
    if not said:
        assert read_tree(npu_tree, TODAY)[1] == []
        return
    edit(npu_tree, "hardware/a2.yaml", old, new)
    text = only(npu_tree)
    assert said in text
    assert f"a2.yaml:{line}: " in text


def test_an_image_by_tag_is_refused_and_the_digest_asked_for(npu_tree: Path):
    edit(npu_tree, "hardware/a2.yaml", "digest: unbuilt", "tag: latest")
    texts = [str(problem) for problem in read_tree(npu_tree, TODAY)[1]]
    assert len(texts) == 2
    assert "'digest' is missing in image: add it" in "".join(texts)
    assert "unknown key 'image.tag'" in "".join(texts)


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("    tags: [moe]\n", "no tag 'moe'"),
        ("    unvalidated: never tried\n", "is experimental: write disposition: experimental"),
        ("    framework: slime\n", "frameworks/slime.yaml is not declared"),
        ("    wall_minutes: 0\n", "greater than 0"),
        ("    wall_minutes: no\n", 'write false or "no"'),
    ],
)
def test_a_cell_s_own_faults(tree: Path, new: str, said: str):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", f"    tiers: [smoke, nightly]\n{new}")
    assert said in only(tree)


def test_tags_have_a_closed_vocabulary(tree: Path):
    (tree / "tags.yaml").write_text("tags: [{name: moe, summary: routed experts}]\n")
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", "    tiers: [smoke, nightly]\n    tags: [meo]\n")
    assert "no tag 'meo'; nearest: moe" in only(tree)


@pytest.mark.parametrize(
    ("excludes", "said"),
    [
        ("[{settings: [colocate], models: [qwen3-40b], reason: x}]", "the exclusion matches nothing: models/qwen3-40b.yaml is not declared; nearest: qwen3-4b"),
        ("[{settings: [colocate], hardware: [cpux], reason: x}]", "the exclusion matches nothing: hardware/cpux.yaml is not declared; nearest: cpu"),
        ("[{settings: [colocate], reason: x}]", "colocate alone is excluded everywhere"),
        ("[{settings: [colocate], hardware: [cpu], reason: too slow}]", f"'{CELL}': colocate is excluded for cpu"),
    ],
)
def test_exclusions_that_match_nothing_or_remove_a_required_cell_are_refused(tree: Path, excludes: str, said: str):
    edit(tree, "modes.yaml", "excludes: []", f"excludes: {excludes}")
    _, problems = read_tree(tree, TODAY)
    assert any(said in str(problem) for problem in problems), problems


def test_a_published_count_that_contradicts_the_architecture_is_refused(tree: Path):
    edit(tree, MODEL, "parameters: 4022468096", "parameters: 4022468097")
    (problem,) = check(load(tree))
    assert "4,022,468,097 are published, the architecture has 4,022,468,096" in str(problem)
    assert f"qwen3-4b.yaml:{line_of(tree, MODEL, 'parameters:')}: " in str(problem)


def test_a_hardware_cell_needs_both_kinds_of_evidence(npu_tree: Path):
    record(npu_tree)
    for name in ("math-smoke-2k", "math-converge-4k"):
        (npu_tree / f"recipes/{name}.yaml").write_text((ROOT / f"recipes/{name}.yaml").read_text())
    layout = "config: {parallel: {tensor: 4}, rollout: {tensor_parallel: 4}, train: {recompute: full, max_tokens_per_microbatch: 8192}}"
    one = f"  - {{id: qwen3-4b.a2.non-colocate, recipe: math-smoke-2k, tiers: [release], disposition: experimental, wall_minutes: 60, {layout}}}\n"
    (npu_tree / CELLS).write_text((npu_tree / CELLS).read_text() + one)
    (problem,) = check(load(npu_tree))
    assert "'qwen3-4b.a2.non-colocate' has no cell with evidence: convergence beside it" in str(problem)
    other = one.replace("non-colocate,", "non-colocate@long,").replace("math-smoke-2k", "math-converge-4k").replace("wall_minutes: 60", "wall_minutes: 900")
    (npu_tree / CELLS).write_text((npu_tree / CELLS).read_text() + other)
    assert check(load(npu_tree)) == []


def test_a_tier_over_budget_is_a_fault(tree: Path):
    record(tree)
    edit(tree, "tiers.yaml", "on a laptop, device_hours: 0.2", "on a laptop, device_hours: 0.01")
    (problem,) = check(load(tree))
    assert "tiers.yaml: tier smoke takes 0.1 device-hours, its budget is 0.01" in str(problem)


def test_a_data_file_that_is_nowhere_is_refused_with_the_mend(tree: Path):
    edit(tree, "recipes/spell-backward.yaml", "    task: spell_backward", "    path: datasets/none.jsonl")
    (problem,) = [problem for problem in check(load(tree)) if "baseline" not in str(problem)] or [None]
    assert problem is None  # `check` plans; the science is taken when a run is resolved
    from matrix.problem import MatrixError
    from matrix.resolver import resolve

    with pytest.raises(MatrixError, match=r"spell-backward\.yaml:\d+: datasets/none.jsonl is not in the checkout: declare it under datasets"):
        resolve(CELL, 100, load(tree))


# ---- baselines --------------------------------------------------------------------------------------------------------------------------------------------


def baseline_faults(root: Path) -> list[str]:
    return [str(problem) for problem in check(load(root))]


def test_a_required_cell_without_a_baseline(tree: Path):
    found = baseline_faults(tree)
    assert len(found) == 1
    assert re.search(r"qwen3-4b\.yaml:2: 'qwen3-4b\.cpu\.non-colocate' is required and has no baseline", found[0])
    assert "python -m e2e baseline qwen3-4b.cpu.non-colocate" in found[0]
    for _ in range(2):
        edit(tree, CELLS, "tiers: [smoke, nightly]\n", "tiers: [nightly, smoke]\n    disposition: experimental\n")
    assert baseline_faults(tree) == []


def test_an_orphaned_baseline(tree: Path):
    record(tree)
    (tree / "baselines" / "0123456789ab").mkdir()
    (found,) = baseline_faults(tree)
    assert "0123456789ab/baseline.json: an orphan: no declared cell learns this any more" in found


def test_a_changed_recipe_orphans_its_baseline_and_misses_the_new_one(tree: Path):
    record(tree)
    edit(tree, "recipes/spell-backward.yaml", "lr: 5.0e-4", "lr: 5.0e-5")
    found = baseline_faults(tree)
    assert len(found) == 2
    assert "an orphan" in "".join(found)
    assert "is required and has no baseline" in "".join(found)


METRICS = "seed-0/metrics.jsonl"


def curve(values: list[object], name: str = "rollout/reward_mean") -> str:
    return "".join(json.dumps({"step": step, "metrics": {name: value}}) + "\n" for step, value in enumerate(values))


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("baseline.json", "", "baseline.json: is empty"),
        ("baseline.json", "{", "baseline.json: is not JSON"),
        ("baseline.json", "[]", "baseline.json: is not a JSON object"),
        ("baseline.json", None, "baseline.json: is missing"),
        ("baseline.json", '{"runs": []}', "baseline.json: holds no run"),
        ("baseline.json", '{"runs": [{"seed": 100, "path": "seed-0"}]}', "seeds [100]: a baseline's are 0 to 99, each once"),
        (METRICS, None, "metrics.jsonl: is missing or empty"),
        (METRICS, "", "metrics.jsonl: is missing or empty"),
        (METRICS, "\n", "metrics.jsonl: is missing or empty"),
        (METRICS, "nonsense\n", "metrics.jsonl:1: is no record of a step"),
        (METRICS, curve([0.5] * 100), "is 0.5 at every step: a constant curve is no baseline"),
        (METRICS, curve([0.0] * 100), "is 0.0 at every step"),
        (METRICS, curve([0.1, 0.2, float("nan")] + [0.3] * 97), "metrics.jsonl:3: rollout/reward_mean is nan: no baseline"),
        (METRICS, curve(["nan"] * 100), "metrics.jsonl:1: rollout/reward_mean is nan"),
        (METRICS, curve([step / 60 for step in range(60)]), "has 60 steps of 100 planned"),
        (METRICS, curve([step / 100 for step in range(100)], "reward"), "never holds rollout/reward_mean"),
    ],
)
def test_a_baseline_that_proves_nothing(tree: Path, file: str, content: str | None, said: str):
    directory = record(tree)
    if content is None:
        (directory / file).unlink()
    else:
        (directory / file).write_text(content)
    found = baseline_faults(tree)
    assert len(found) == 1
    assert said in found[0]


# ---- composition of modes ---------------------------------------------------------------------------------------------------------------------------------

RULES = load(ROOT).modes
NAMES = sorted(RULES.settings)


@settings(deadline=None)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
def test_canonical_order_is_one_whatever_order_a_mode_is_written_in(names: list[str]):
    forms = {RULES.canonical(CellId("m", "h", tuple(order))) for order in (names, names[::-1], sorted(names))}
    assert len(forms) == 1
    canonical = forms.pop()
    assert RULES.canonical(canonical) == canonical


@settings(deadline=None)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
def test_a_mode_without_a_fault_composes_without_a_contradiction(names: list[str]):
    cell = RULES.canonical(CellId("m", "h", tuple(names)))
    if list(RULES.mode_faults(cell)):
        return
    composed = compose(RULES.fragments(cell.settings))
    assert composed.problems == []
    assert composed.values["placement"]["mode"] == cell.settings[0]
    for name in cell.settings:
        for key, value in leaves_of(RULES.settings[name].config):
            assert lookup_in(composed.values, key) == value  # what a setting says holds whatever stands beside it


@settings(deadline=None)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
def test_a_mode_is_accepted_exactly_when_each_rule_holds(names: list[str]):
    cell = RULES.canonical(CellId("m", "h", tuple(names)))
    slots = [RULES.slot_of[name].name for name in names]
    one_each = len(set(slots)) == len(slots)
    required = {slot.name for slot in RULES.slots if slot.required} <= set(slots)
    apart = not any(set(exclusion.settings) <= set(names) for exclusion in RULES.excludes if not exclusion.models and not exclusion.hardware)
    beside = all(RULES.settings[name].needs_setting in (None, *names) for name in names)
    assert (not list(RULES.mode_faults(cell))) == (one_each and required and apart and beside)


def leaves_of(values: dict) -> list:
    from matrix.fragments import leaves

    return list(leaves(values))


def lookup_in(values: dict, key: tuple[str, ...]) -> object:
    from matrix.fragments import lookup

    return lookup(values, key)


def test_a_setting_that_needs_another_says_so():
    modes = Modes.model_validate(
        {
            "slots": [
                {"name": "placement", "required": True, "settings": [{"name": "here", "summary": "x"}]},
                {"name": "draft", "settings": [{"name": "mtp", "summary": "x"}]},
                {"name": "depth", "settings": [{"name": "deep", "summary": "x", "needs_setting": "mtp"}]},
            ]
        }
    )
    rules = ModeRules(modes)
    assert [message for _, message in rules.mode_faults(CellId("m", "h", ("here", "deep")))] == ["'m.h.here+deep': deep needs mtp beside it"]
    assert list(rules.mode_faults(CellId("m", "h", ("here", "mtp", "deep")))) == []


def test_a_key_that_a_setting_leaves_to_the_cell_must_be_set(tree: Path):
    record(tree)
    slot = "  - name: context\n    settings: [{name: cp, summary: spread, needs: [parallel.context]}]\n"
    edit(tree, "modes.yaml", "excludes: []", slot + "excludes: []")
    edit(tree, CELLS, "id: qwen3-4b.cpu.non-colocate\n", "id: qwen3-4b.cpu.non-colocate+cp\n")
    (found,) = baseline_faults(tree)
    assert "the setting cp needs parallel.context: set it in the cell's config" in found
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", "    tiers: [nightly]\n    config: {parallel: {context: 2}}\n")
    assert baseline_faults(tree) == []


def test_a_setting_vime_does_not_have_yet_stands_in_no_cell_that_claims_to_run(tree: Path):
    record(tree)
    slot = "  - name: data-plane\n    settings: [{name: tq, summary: queue, awaits: there is no queue}]\n"
    edit(tree, "modes.yaml", "excludes: []", slot + "excludes: []")
    edit(tree, CELLS, "id: qwen3-4b.cpu.non-colocate\n", "id: qwen3-4b.cpu.non-colocate+tq\n")
    (found,) = baseline_faults(tree)
    assert "'qwen3-4b.cpu.non-colocate+tq' cannot run: tq: there is no queue; declare it unvalidated" in found
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", "    tiers: [nightly]\n    disposition: experimental\n    unvalidated: no queue\n")
    assert baseline_faults(tree) == []
