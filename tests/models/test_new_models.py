"""Models the code has never seen need no code: their config.json is enough."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.models import hugging_face, megatron
from tests.models.families import LLAMA_3_2, architecture
from tests.models.identity import check_identity
from tests.training.ranks import one_rank
from vime.models.registry import family_for
from vime.models.twin_config import twin_config

QWEN3_1_7B = {
    **architecture("qwen3-8b"),
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "tie_word_embeddings": True,
    "max_window_layers": 28,
}
QWEN3_14B = {
    **architecture("qwen3-8b"),
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "max_window_layers": 40,
}
LLAMA_3_70B = {
    **architecture("llama-3"),
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
}
NEW: dict[str, tuple[dict[str, Any], int]] = {  # published parameter counts
    "qwen3-1.7b": (QWEN3_1_7B, 1_720_574_976),
    "llama-3.2-1b": (LLAMA_3_2, 1_235_814_400),
    "qwen3-14b": (QWEN3_14B, 14_768_307_200),
    "llama-3.1-70b": (LLAMA_3_70B, 70_553_706_496),
}


@pytest.mark.parametrize("name", NEW)
def test_names_and_shapes_are_those_of_hugging_faces_class(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    config, parameters = NEW[name]
    table = family_for(config).weight_table(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    theirs = {key: tuple(value.shape) for key, value in model.state_dict().items() if not (config["tie_word_embeddings"] and key == "lm_head.weight")}
    assert dict(table.shapes) == theirs
    assert sum(math.prod(shape) for shape in table.shapes.values()) == parameters


@pytest.mark.parametrize("name", NEW)
def test_its_twin_agrees_with_hugging_face_and_survives_a_layout(name, tmp_path):
    config = twin_config(NEW[name][0]).config
    directory = hugging_face.write(config, tmp_path / name)
    assert megatron.gap(directory, hugging_face.logits(directory, megatron.SEQUENCES)) < 2e-5
    check_identity(config, {"tensor": 2, "sequence_parallel": True, "pipeline": 2})


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_scaling": {"type": "linear", "factor": 3.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3}},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
    ],
    ids=str,
)
def test_flags_of_llama(changes, tmp_path):
    config = {**twin_config(architecture("llama-3")).config, **changes}
    directory = hugging_face.write(config, tmp_path / "model")
    assert megatron.gap(directory, hugging_face.logits(directory, megatron.SEQUENCES)) < 2e-5


def test_biases_and_flags_of_qwen3(tmp_path):
    for name, changes in (("qwen3-4b", {"attention_bias": True}), ("qwen3-30b-a3b", {"norm_topk_prob": False}), ("qwen3-30b-a3b", {"mlp_only_layers": [0]})):
        config = {**twin_config(architecture(name)).config, **changes}
        directory = hugging_face.write(config, tmp_path / f"{name}-{next(iter(changes))}")
        assert megatron.gap(directory, hugging_face.logits(directory, megatron.SEQUENCES)) < 2e-5


def test_a_routing_bias_keeps_float32_in_a_bfloat16_run(tmp_path):
    """Loaded, exported and marked for the wire as float32: rounding it would change which experts are chosen."""
    from safetensors.torch import load_file

    directory = hugging_face.write(twin_config(architecture("glm-4.7")).config, tmp_path / "model")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    bias = load_file(directory / "model.safetensors")[name]
    assert not torch.equal(bias, bias.bfloat16().float())
    with one_rank(megatron.config_of(directory, model={"dtype": "bfloat16"})) as actor:
        shards = {shard.hf_name: shard for shard in actor.shards()}
        assert torch.equal(shards[name].tensor, bias)
        assert [shard.hf_name for shard in shards.values() if shard.float32] == [name]
        actor.logprobs([[5, 6, 7, 8]])
        assert torch.equal(shards[name].tensor, bias), "a forward pass changed it"
        actor.export_hf(str(tmp_path / "out"))
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(exported[name], bias) and exported["lm_head.weight"].dtype == torch.bfloat16
    assert actor.trained.hf_config["dtype"] == "float32" and (tmp_path / "out" / "config.json").read_text().count("bfloat16") == 1
