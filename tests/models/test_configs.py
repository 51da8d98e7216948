"""config.json → sizes, rotary base, tied embeddings; and what is refused."""

from __future__ import annotations

import pytest

from tests.models.families import architecture
from vime.config.tree import ParallelConfig
from vime.errors import UserError
from vime.models.base import tied
from vime.models.qwen3 import Qwen3
from vime.models.registry import family_for
from vime.models.rope import read_rope

BASE = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope_theta": 1e6}, 1e6),
        ({"rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}}, 5e6),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e6}}, 5e6),
        ({"rope_theta": 2e6, "rope_scaling": None}, 2e6),
        ({}, 10000.0),
    ],
)
def test_rope_theta_of_old_and_new_configs(keys, expected):
    assert read_rope({**BASE, **keys}).theta == expected


def test_an_unknown_rope_and_one_without_its_factor_are_refused():
    with pytest.raises(UserError, match="rope type 'longrope'"):
        read_rope({**BASE, "rope_scaling": {"type": "longrope", "factor": 4.0}})
    with pytest.raises(UserError, match="rope type 'yarn' without factor"):
        read_rope({**BASE, "rope_scaling": {"type": "yarn"}})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [({"tie_word_embeddings": True}, True), ({"tie_word_embeddings": False}, False), ({"text_config": {"tie_word_embeddings": True}}, True), ({}, False)],
)
def test_tied_flag_at_the_top_nested_or_absent(keys, expected):
    assert tied({**BASE, **keys}) is expected
    assert ("lm_head.weight" in Qwen3().weight_table({**BASE, **keys}).shapes) is not expected


def test_kv_heads_that_do_not_divide_are_refused_with_both_numbers():
    with pytest.raises(UserError, match="parallel.tensor 2 .* 3 key/value heads"):
        Qwen3().megatron_config(BASE, ParallelConfig(tensor=2), {})
    with pytest.raises(UserError, match="parallel.tensor 6 .* 3 key/value heads"):
        Qwen3().megatron_config(BASE, ParallelConfig(tensor=6), {})


@pytest.mark.parametrize(("key", "value"), [("hidden_act", "gelu"), ("use_sliding_window", True)])
def test_settings_outside_the_family_are_refused(key, value):
    with pytest.raises(UserError, match=key):
        Qwen3().shape({**BASE, key: value})


def test_a_missing_size_is_named():
    with pytest.raises(UserError, match="hidden_size is missing"):
        Qwen3().weight_table({key: value for key, value in BASE.items() if key != "hidden_size"})


def test_unknown_family_names_the_known_ones():
    with pytest.raises(UserError, match=r"dir/config.json: model_type 'mamba'.*qwen3"):
        family_for({"model_type": "mamba"}, "dir/config.json")


def test_a_model_that_is_known_and_cannot_be_trained_says_why():
    with pytest.raises(UserError, match=r"glm_moe_dsa' is not supported: .*index_topk"):
        family_for(architecture("glm-5"))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("glm-4.7-flash", {"attention_bias": True}, "attention_bias True"),
        ("glm-4.7-flash", {"rope_interleave": False}, "rope_interleave False"),
        ("glm-4.7-flash", {"mlp_layer_types": ["dense", "sparse"]}, "mlp_layer_types names 2 layers, num_hidden_layers is 47"),
        ("glm-4.7-flash", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear' is not supported with latent attention"),
        ("deepseek-v3", {"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ("deepseek-v3", {"norm_topk_prob": False}, "norm_topk_prob False"),
        ("deepseek-v3", {"num_experts_per_tok": 4}, "4 / 4, which must be 2"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq 2"),
        ("minimax-m2.5", {"attn_type_list": [0, *[1] * 61]}, "attn_type_list holds layers that are not full attention"),
        ("minimax-m2.5", {"qk_norm_type": "per_head"}, "qk_norm_type 'per_head'"),
        ("llama-3", {"mlp_bias": True}, "mlp_bias true with attention_bias false"),
        ("qwen3-30b-a3b", {"num_experts": None}, "num_local_experts is missing"),
    ],
)
def test_what_a_family_does_not_support_is_refused_and_named(name, changes, said):
    config = {**architecture(name), **changes}
    with pytest.raises(UserError) as refusal:
        family_for(config).check_layout(config, ParallelConfig())
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "parallel", "said"),
    [
        ("qwen3-30b-a3b", {"tensor": 8}, "parallel.tensor 8 does not divide the model's 4 key/value heads"),
        ("qwen3-30b-a3b", {"expert": 3}, "parallel.expert 3 does not divide the model's experts (128)"),
        ("qwen3-30b-a3b", {"expert_tensor": 5}, "parallel.expert_tensor 5 does not divide the model's experts' intermediate size (768)"),
        ("qwen3-30b-a3b", {"tensor": 2}, "parallel.tensor 2 with routed experts needs parallel.sequence_parallel: true"),
        ("glm-4.7-flash", {"tensor": 8, "sequence_parallel": True}, "parallel.tensor 8 does not divide the model's attention heads (20)"),
        ("qwen3-32b", {"expert": 2}, "the model has no experts"),
    ],
)
def test_layouts_that_do_not_divide_are_refused_with_the_numbers(name, parallel, said):
    config = architecture(name)
    with pytest.raises(UserError) as refusal:
        family_for(config).check_layout(config, ParallelConfig(**parallel))
    assert said in str(refusal.value)


def test_a_yarn_factor_below_one_is_refused():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 0.5}
    with pytest.raises(UserError, match=r"scaled by 0\.5 is not supported"):
        Qwen3().megatron_config({**architecture("qwen3-8b"), "rope_scaling": scaling}, ParallelConfig(), {})
