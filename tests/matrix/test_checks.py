from __future__ import annotations

from pathlib import Path

import pytest

from matrix.checks import check
from matrix.loader import load
from tests.matrix.tree import CELLS, MODEL, RECIPE, edit, line_of, record


def fault(root: Path) -> str:
    problems = check(load(root))
    assert len(problems) == 1, [str(problem) for problem in problems]
    return str(problems[0])


def test_the_copied_tree_has_no_fault(tree: Path):
    record(tree)
    assert check(load(tree)) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (RECIPE, "    prompts_per_step: 32", "    prompt_per_step: 32", "vime has no key 'rollout.prompt_per_step'; nearest: prompts_per_step"),
        (RECIPE, "    temperature: 1.0", "    temperature: warm", "rollout.temperature: 'warm' is not of type 'number'"),
        (RECIPE, "    advantage: grpo", "    advantage: gpro", "algo.advantage: 'gpro' is not one of"),
        (RECIPE, "    steps: 100", "    steps: 90", "train.steps is 90, judge.planned_steps is 100"),
        (RECIPE, "  range: [0.0, 1.0]", "  range: [1.0, 1.0]", "1.0 is not below 1.0"),
        (RECIPE, "reward: {name: exact_match}", "reward: {name: exact_match, range: [0.0, 2.0]}", "contradicts"),
        (RECIPE, "initial: 1", "initial: 5", "no look would be left"),
        (
            RECIPE,
            "  sided: two",
            "  sided: two\n  paired: true",
            "judge.paired: no candidate ever has a baseline run of its seed (baselines take seeds 0 to 99",
        ),
        (RECIPE, "  exactness:\n", "  exactness:\n    trajectory: {seed: 7, pointwise: 0.1, mean: 0.01}\n", "judge.exactness.trajectory.seed is 7"),
        (RECIPE, "metric: rollout/reward_mean", "metric: eval/heldout/score", "eval.every is not set: nothing would be measured"),
        ("hardware/cpu.yaml", "  platform: cpu\n", "  platform: cpu\n  train: {lr: 1.0}\n", "contradicts"),
        ("hardware/cpu.yaml", "  vllm: 0.32.0", "  vllm: 0.31.0", "no catalogue of vllm 0.31.0"),
        ("hardware/cpu.yaml", "  megatron-core: 0.16.1\n", "", "versions names no megatron-core"),
        ("modes.yaml", "weights: {transport: ipc}", "weights: {transprot: ipc}", "vime has no key 'weights.transprot'; nearest: transport"),
        ("science.yaml", "  - key: algo.clip_low\n", "", "vime's key 'algo.clip_low' is in neither list"),
        ("science.yaml", "  - key: algo.clip_low\n", "  - key: algo.clip_low\n  - key: algo.clip_lower\n", "vime has no such key"),
    ],
)
def test_each_fault_is_found(tree: Path, name: str, old: str, new: str, said: str):
    edit(tree, name, old, new)
    texts = [str(problem) for problem in check(load(tree))]
    assert any(said in text for text in texts), texts


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("hardware/cpu.yaml", "  platform: cpu\n", "  platform: cpu\n  algo: {kl_estimator: k1}\n"),
        ("modes.yaml", "weights: {transport: ipc}", "weights: {transport: ipc}\n          model: {dtype: bfloat16}"),
        (CELLS, "    tiers: [smoke, nightly]\n", "    tiers: [smoke, nightly]\n    config: {data: {chat_template: true}}\n"),
    ],
)
def test_only_a_recipe_says_what_is_learned(tree: Path, name: str, old: str, new: str):
    edit(tree, name, old, new)
    texts = [str(problem) for problem in check(load(tree))]
    assert any("says what is learned: only a recipe sets it" in text for text in texts), texts


def test_a_fault_of_a_composition_points_to_the_fragment_that_holds_it(tree: Path):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", "    tiers: [smoke, nightly]\n    config: {rollout: {enginse: 2}}\n")
    text = fault(tree)
    assert f"cells/qwen3-4b.yaml:{line_of(tree, CELLS, 'enginse')}: vime has no key 'rollout.enginse'; nearest: engines" in text


def test_a_fault_shared_by_all_cells_is_reported_once(tree: Path):
    edit(tree, RECIPE, "    temperature: 1.0", "    temperature: warm")
    assert f"spell-backward.yaml:{line_of(tree, RECIPE, 'temperature: warm')}: " in fault(tree)


def test_two_places_that_set_one_value_are_named_both(tree: Path):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", "    tiers: [smoke, nightly]\n    config: {weights: {transport: disk}}\n")
    text = fault(tree)
    assert "weights.transport = 'disk' contradicts 'broadcast' set at" in text
    assert f"modes.yaml:{line_of(tree, 'modes.yaml', 'transport: broadcast')}" in text


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("vllm: {enforce_eagre: true}", "vllm 0.32.0 has no option 'enforce_eagre'; nearest: enforce_eager"),
        ("megatron: {optimizer: {adam_bta1: 0.9}}", "megatron-core 0.16.1 has no option 'adam_bta1'; nearest: adam_beta1"),
        ("megatron: {optimiser: {lr: 0.9}}", "'optimiser' is none; nearest: optimizer"),
        ("megatron: {model: 3}", "is not a mapping of options"),
    ],
)
def test_passed_through_options_are_held_to_the_catalogue_of_the_version(tree: Path, block: str, said: str):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", f"    tiers: [smoke, nightly]\n    config: {{{block}}}\n")
    assert said in fault(tree)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    tie_word_embeddings: true\n    vocab_size: 64",
            "    tie_word_embeddings: false\n    vocab_size: 64",
            "tie_word_embeddings is True in the model and False in the twin",
        ),
        (
            "    attention_bias: false\n    attention_dropout: 0.0\n    tie_word_embeddings: true\n    vocab_size: 64",
            "    attention_dropout: 0.0\n    tie_word_embeddings: true\n    vocab_size: 64",
            "attention_bias is False in the model and missing in the twin",
        ),
        ("      twin: 1.333", "      twin: 1.5", "of the twin is 1.333, not 1.5"),
        ("    - ratio: head_dim\n", "    - ratio: head_size\n", "'head_size' is None, not a number"),
        ("    - ratio: head_dim\n", "    - ratio: head_dim + 1\n", "not a product or quotient"),
        ("max_window_layers / num_hidden_layers", "vocab_size / hidden_size", "list it under deviations"),
        ("sha256: ", "sha256: " + "a" * 64 + "  # ", "another checkpoint is another recipe"),
        ("directory: play", "directory: plya", "does not exist"),
    ],
)
def test_a_twin_keeps_its_promise(tree: Path, old: str, new: str, said: str):
    edit(tree, MODEL, old, new)
    texts = [str(problem) for problem in check(load(tree))]
    assert any(said in text and "qwen3-4b.yaml:" in text for text in texts), texts


def test_a_recipe_without_its_warm_start_says_how_to_make_it(tree: Path):
    edit(tree, MODEL, "    spell-backward:\n", "    spell-forward:\n")
    assert "make it with 'vime sft examples/sft-spell-backward.yaml'" in fault(tree)


def test_the_warm_start_s_own_config_must_be_the_twin_s(tree: Path):
    (tree / "warmstarts/play/config.json").write_text('{"model_type": "qwen3", "hidden_size": 128, "rope_parameters": {"rope_theta": 10000.0}}')
    text = fault(tree)
    assert f"qwen3-4b.yaml:{line_of(tree, MODEL, 'hidden_size: 96')}: hidden_size is 96 here and 128 in" in text


def test_a_missing_schema_says_how_to_write_it(tree: Path):
    (tree / "schema/vime-config.schema.json").unlink()
    assert "write it with 'vime config schema'" in fault(tree)


def test_a_reason_that_is_no_longer_true_is_a_fault(tree: Path):
    said = "    disposition: experimental\n    unvalidated: the twin has no warm start of this recipe yet\n"
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", f"    tiers: [smoke, nightly]\n{said}")
    (found,) = [problem for problem in check(load(tree)) if "warm start" in problem.message]
    assert "and the twin has it: say what is not known yet, or remove the line" in found.message
    assert found.where.line == line_of(tree, CELLS, "unvalidated:")
