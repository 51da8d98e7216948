from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.canonical import content_hash
from matrix.layout import devices_needed
from matrix.loader import load
from matrix.resolver import baseline_directory, config_hash, labels, resolve, science_hash
from tests.matrix.tree import CELL, CELLS, MODEL, RECIPE, edit, make_tree

OTHER = "qwen3-4b.cpu.non-colocate"


def test_the_resolved_configuration_is_recipe_plus_hardware_plus_mode(tree: Path):
    config = resolve(CELL, 103, load(tree))
    assert (config["train"]["lr"], config["rollout"]["samples_per_prompt"]) == (5e-4, 8)
    assert (config["platform"], config["placement"]["mode"], config["weights"]["transport"]) == ("cpu", "colocate", "ipc")
    assert (config["seed"], config["name"], config["reward"]["range"]) == (103, CELL, [0.0, 1.0])
    assert Path(config["model"]["path"]) == tree / "warmstarts/play"


def test_vime_accepts_every_cell_of_the_checkout(tmp_path: Path):
    """The real thing on the other side of the file: vime's own resolve reads what the matrix wrote."""
    from vime.config.resolve import resolve as vime_resolve

    matrix = load(make_tree(tmp_path))
    for cell in matrix.cells:
        file = tmp_path / "run.yaml"
        file.write_text(json.dumps(resolve(cell, 100, matrix)))
        resolved = vime_resolve(file)
        assert resolved.config.labels == labels(matrix, matrix.cell(cell))
        assert resolved.config.train.lr == 5e-4


def test_the_labels_say_what_a_run_is(tree: Path):
    matrix = load(tree)
    assert resolve(CELL, 100, matrix)["labels"] == {
        "cell": CELL,
        "recipe": "spell-backward",
        "science_hash": science_hash(CELL, matrix),
        "reward": {"id": "exact-match/1", "range": [0.0, 1.0]},
        "evidence": "convergence",
        "planned_steps": 100,
        "model": "twin, 6.2 k",
    }


def test_cells_that_learn_the_same_share_hash_and_baseline(tree: Path):
    matrix = load(tree)
    assert science_hash(CELL, matrix) == science_hash(OTHER, matrix)
    assert baseline_directory(matrix.cell(CELL), matrix) == tree / "baselines" / science_hash(CELL, matrix)[:12]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (RECIPE, "    lr: 5.0e-4", "    lr: 5.0e-5"),
        (RECIPE, "    temperature: 1.0", "    temperature: 0.9"),
        (RECIPE, "    seed: 77", "    seed: 78"),
        (RECIPE, "    samples_per_prompt: 8", "    samples_per_prompt: 16"),
        (RECIPE, "    clip_high: 0.28", "    clip_high: 0.3"),
        (RECIPE, "  id: exact-match/1", "  id: exact-match/2"),
        (RECIPE, "    kl_coef: 0.0", "    kl_coef: 0.0\n    kl_estimator: k1"),
        (RECIPE, "  weights:\n", "  megatron: {model: {rotary_interleaved: true}}\n  weights:\n"),
        (RECIPE, "  model: {dtype: float32}", "  model: {dtype: bfloat16}"),
        (MODEL, "    rms_norm_eps: 1e-6\n    rope_theta: 10000", "    rms_norm_eps: 1e-5\n    rope_theta: 10000"),
    ],
)
def test_what_is_learned_changes_the_science_hash(tree: Path, name: str, old: str, new: str):
    before = science_hash(CELL, load(tree))
    edit(tree, name, old, new)
    assert science_hash(CELL, load(tree)) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (RECIPE, "    verify_held_every: 1 ", "    verify_held_every: 5 "),
        (RECIPE, "    max_tokens_per_microbatch: 4096", "    max_tokens_per_microbatch: 512"),
        (RECIPE, "reward: {name: exact_match}", "reward: {name: exact_match, timeout_s: 3, workers: 2}"),
        (RECIPE, "delta: {first: 0.10", "delta: {first: 0.20"),
        (RECIPE, "    kl_coef: 0.0", "    kl_coef: 0"),
        (RECIPE, "    kl_coef: 0.0", "    kl_coef: 0.0\n    kl_estimator: k3"),
        (
            CELLS,
            "    tiers: [smoke, nightly]\n",
            "    tiers: [nightly]\n    config: {parallel: {data: 2}, rollout: {dtype: bfloat16}, vllm: {max_num_seqs: 64}}\n",
        ),
        (CELLS, "recipe: spell-backward\n    tiers: [smoke, nightly]\n", "tiers: [smoke, nightly]\n    recipe: spell-backward\n"),
        ("hardware/cpu.yaml", "devices_per_node: 4", "devices_per_node: 16"),
    ],
)
def test_where_and_how_it_runs_does_not(tree: Path, name: str, old: str, new: str):
    before = science_hash(CELL, load(tree))
    edit(tree, name, old, new)
    assert science_hash(CELL, load(tree)) == before
    assert science_hash(OTHER, load(tree)) == before


def test_seed_changes_the_configuration_and_not_the_science(tree: Path):
    matrix = load(tree)
    one, other = resolve(CELL, 100, matrix), resolve(CELL, 101, matrix)
    assert config_hash(one, matrix) != config_hash(other, matrix)
    assert one["labels"] == other["labels"]


def test_other_initial_weights_are_another_science(tree: Path):
    before = science_hash(CELL, load(tree))
    text = (tree / MODEL).read_text()
    (tree / MODEL).write_text(text[: text.rindex("sha256: ")] + f"sha256: {'a' * 64}\n")
    assert science_hash(CELL, load(tree)) != before


def test_moving_the_checkout_changes_no_hash(tmp_path: Path):
    first = make_tree(tmp_path)
    shutil.copytree(tmp_path / "checkout", tmp_path / "elsewhere")
    one, other = load(first), load(tmp_path / "elsewhere" / "matrix")
    assert science_hash(CELL, one) == science_hash(CELL, other)
    assert config_hash(resolve(CELL, 1, one), one) == config_hash(resolve(CELL, 1, other), other)


def test_a_key_younger_than_a_baseline_leaves_the_hash_alone_at_its_neutral_value(tree: Path):
    old = science_hash(CELL, load(tree))
    edit(tree, "science.yaml", "  - key: algo.kl_estimator\n", "")
    without = science_hash(CELL, load(tree))
    edit(tree, "science.yaml", "  - key: algo.kl_coef\n", "  - key: algo.kl_coef\n  - {key: algo.kl_estimator, neutral: k3}\n")
    assert science_hash(CELL, load(tree)) == without != old
    edit(tree, RECIPE, "    kl_coef: 0.0", "    kl_coef: 0.0\n    kl_estimator: k1")
    assert science_hash(CELL, load(tree)) != without


def test_the_held_out_set_is_science_where_the_verdict_reads_it(tree: Path):
    edit(tree, RECIPE, "  weights:\n", "  eval: {every: 10, size: 64}\n  weights:\n")
    beside = science_hash(CELL, load(tree))
    edit(tree, RECIPE, "size: 64", "size: 128")
    assert science_hash(CELL, load(tree)) == beside
    edit(tree, RECIPE, "metric: rollout/reward_mean", "metric: eval/heldout/score")
    judged = science_hash(CELL, load(tree))
    edit(tree, RECIPE, "size: 128", "size: 64")
    assert len({beside, judged, science_hash(CELL, load(tree))}) == 3


def test_a_data_file_is_its_content(tree: Path):
    checkout = tree.parent
    (checkout / "prompts.jsonl").write_text('{"prompt": "ab=", "label": "ba"}\n')
    edit(tree, RECIPE, "    task: spell_backward", "    path: prompts.jsonl")
    one = science_hash(CELL, load(tree))
    (checkout / "prompts.jsonl").write_text('{"prompt": "ab=", "label": "bb"}\n')
    assert science_hash(CELL, load(tree)) != one


def test_devices_of_a_layout(tree: Path):
    matrix = load(tree)
    config = resolve(OTHER, 100, matrix)
    assert devices_needed(config, matrix.vime) == 2
    assert devices_needed({**config, "parallel": {"data": 2, "tensor": 2}, "rollout": {"engines": 3}}, matrix.vime) == 7
    assert devices_needed({**config, "placement": {"mode": "colocate"}, "parallel": {"data": 2}, "rollout": {"engines": 2}}, matrix.vime) == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=6))
def test_the_hash_does_not_see_the_order_of_keys_nor_the_trip_through_json(value: dict):
    shuffled = dict(reversed(list(value.items())))
    assert content_hash(value) == content_hash(shuffled) == content_hash(json.loads(json.dumps(value)))


def test_the_hash_sees_every_value_and_refuses_what_is_no_number():
    assert content_hash({"a": 1}) == content_hash({"a": 1.0})
    assert content_hash({"a": 1}) != content_hash({"a": True})
    assert content_hash({"a": [1, 2]}) != content_hash({"a": [2, 1]})
    with pytest.raises(ValueError):
        content_hash({"a": float("nan")})
