"""config.json → sizes, rotary base, tied embeddings; and what is refused."""

from __future__ import annotations

import pytest

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
