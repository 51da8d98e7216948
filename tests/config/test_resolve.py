import dataclasses

import pytest

from vime.config.resolve import from_dict, resolve, schema, to_dict
from vime.errors import UserError

BASE = "name: a\nmodel: {path: /m}\ndata:\n  task: spell_backward\ntrain:\n  steps: 20\n  lr: 1e-4\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(BASE)
    return path


def error_of(path, *overrides):
    with pytest.raises(UserError) as caught:
        resolve(path, list(overrides))
    return str(caught.value)


def test_every_leaf_says_where_it_came_from(tmp_path, file):
    child = tmp_path / "child.yaml"
    child.write_text("recipe: run.yaml\ntrain:\n  lr: 2e-4\n")
    resolved = resolve(child, ["seed=3", "rollout.top_p=0.9"])
    assert resolved.config.train.lr == 2e-4 and resolved.config.train.steps == 20 and resolved.config.seed == 3
    origin = resolved.provenance
    assert origin["train.lr"] == f"file {child}:3"
    assert origin["train.steps"] == f"recipe {file}:6"
    assert origin["seed"] == origin["rollout.top_p"] == "command line"
    assert origin["train.eps"] == "default"


def test_what_is_resolved_cannot_be_changed(file):
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve(file).config.seed = 4


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("trian: {steps: 3}\n", 8, ["trian", "did you mean train"]),
        ("rollout:\n  temprature: 1.0\n", 9, ["temprature", "did you mean rollout.temperature"]),
        ("seed: 1\nseed: 2\n", 9, ["duplicate key", "seed"]),
        ("rollout:\n  temperature: 0\n", 9, ["rollout.temperature", "no group has an advantage"]),
        ("rollout:\n  top_p: '0.9'\n", 9, ["rollout.top_p", "valid number", "'0.9'"]),
        ("rollout:\n  engines: 2.5\n", 9, ["rollout.engines", "integer", "2.5"]),
        ("rollout:\n  deterministic: no\n", 9, ["rollout.deterministic", "boolean", "'no'"]),
        ("algo:\n  dual_clip: 0.5\n", 9, ["algo.dual_clip", "above 1"]),
        ("weights:\n  transport: carrier-pigeon\n", 9, ["weights.transport", "'ipc'"]),
        ("seed: 4294967296\n", 8, ["seed", "below 2^32", "4294967296"]),
        ("rollout:\n  temperature: 0.001\n", 9, ["rollout.temperature", "0.01 instead of 0.001"]),
    ],
)
def test_an_error_names_file_line_key_value_and_mend(file, text, line, words):
    file.write_text(BASE + text)
    message = error_of(file)
    assert f"{file}:{line}" in message
    for word in words:
        assert word in message


def test_values_that_would_only_break_later_are_refused(file):
    assert "train.beta2: 1 never forgets" in error_of(file, "train.beta2=1")
    assert "name: is a folder's name under runs/" in error_of(file, "name=../elsewhere")


def test_batch_that_does_not_divide_names_the_numbers(file):
    message = error_of(file, "train.optimizer_steps_per_rollout=3")
    assert "3 does not divide the 256 samples" in message and "[1, 2, 4, 8" in message


def test_colocate_needs_as_many_ranks_as_engine_devices(file):
    assert "2 trainer ranks, 1 engine devices" in error_of(file, "placement.mode=colocate", "parallel.data=2")


def test_command_line_errors(file):
    assert "did you mean train.lr" in error_of(file, "train.lrr=1")
    assert "expected key.path=value" in error_of(file, "train.lr")


def test_missing_file_and_missing_key(tmp_path):
    assert "no such file" in error_of(tmp_path / "none.yaml")
    empty = tmp_path / "e.yaml"
    empty.write_text("")
    assert "empty file" in error_of(empty)
    empty.write_text("seed: 1\n")
    assert "missing key model" in error_of(empty)


def test_hash_changes_with_every_value_but_where_it_is_written(file):
    base = resolve(file).hash
    assert resolve(file, ["run_dir=/elsewhere"]).hash == base
    for override in ("seed=1", "train.lr=2e-4", "vllm.max_num_seqs=8", "platform=cpu"):
        assert resolve(file, [override]).hash != base


def test_resolved_values_resolve_to_themselves(file):
    resolved = resolve(file, ["seed=9"])
    assert from_dict(to_dict(resolved.config)).hash == resolved.hash


def test_pass_through_blocks_take_any_key_here(file):
    assert resolve(file, ["megatron.model.num_layers_in_first_pipeline_stage=1"]).config.megatron == {"model": {"num_layers_in_first_pipeline_stage": 1}}


def test_schema_is_strict_and_complete():
    out = schema()
    assert out["additionalProperties"] is False
    assert {"model", "data", "train", "rollout"} <= set(out["properties"])
