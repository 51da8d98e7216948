"""Load and export over random tiny models and layouts: the identity, or a refusal with the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.models.families import BY_NAME
from tests.models.identity import check_identity
from tests.models.simulated import world_size
from vime.errors import UserError

GROUPED = ("qwen3", "qwen3-untied", "qwen3-moe", "llama", "glm4-moe", "minimax-m2")
LATENT = ("glm4-moe-lite", "deepseek-v3", "moonlight")


def sizes(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Changes to the twin's config.json that keep it a model."""
    config = BY_NAME[name].config
    choices: dict[str, st.SearchStrategy[Any]] = {
        "hidden_size": st.sampled_from([16, 24, 40]),
        "intermediate_size": st.sampled_from([8, 12, 20]),
        "vocab_size": st.sampled_from([64, 65, 67, 9, 3]),
        "num_attention_heads": st.sampled_from([4, 8, 12]),
        "tie_word_embeddings": st.booleans(),
    }
    if name in GROUPED:
        choices |= {"num_key_value_heads": st.sampled_from([1, 2, 4]), "head_dim": st.sampled_from([4, 8])}
    if name in LATENT:
        choices |= {"kv_lora_rank": st.sampled_from([8, 12]), "qk_rope_head_dim": st.sampled_from([4, 8]), "v_head_dim": st.sampled_from([4, 6])}
    if config.get("q_lora_rank") is not None:
        choices["q_lora_rank"] = st.sampled_from([6, 8])
    if config.get("moe_intermediate_size"):
        choices["moe_intermediate_size"] = st.sampled_from([4, 6])
    for key in ("num_experts", "n_routed_experts", "num_local_experts"):
        if config.get(key) and not config.get("n_group", 1) > 1:
            choices[key] = st.sampled_from([2, 4, 6])
    if "first_k_dense_replace" in config:
        choices["first_k_dense_replace"] = st.integers(0, 3)
    if name == "llama":
        choices |= {"attention_bias": st.booleans()}
    if name in ("qwen3", "glm4-moe"):
        choices["attention_bias"] = st.booleans()
    if config.get("num_nextn_predict_layers"):
        choices["num_nextn_predict_layers"] = st.sampled_from([0, 1, 2])
    return st.fixed_dictionaries(choices)


@st.composite
def models(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    name = draw(st.sampled_from([*GROUPED, *LATENT]))
    layers = draw(st.integers(2, 5))
    config = {**BY_NAME[name].deeper(layers), **draw(sizes(name))}
    if name == "minimax-m2":
        config["rotary_dim"] = config["head_dim"] // 2
    if name == "qwen3-moe":
        config |= {"decoder_sparse_step": draw(st.sampled_from([1, 2])), "mlp_only_layers": draw(st.sampled_from([[], [0], [1]]))}
    return config, layers


parallels = st.fixed_dictionaries(
    {
        "tensor": st.sampled_from([1, 1, 2, 4]),
        "pipeline": st.sampled_from([1, 1, 2, 3]),
        "context": st.sampled_from([1, 1, 2]),
        "data": st.sampled_from([1, 2]),
        "expert": st.sampled_from([1, 2, 4]),
        "expert_tensor": st.sampled_from([1, 1, 2]),
        "sequence_parallel": st.just(True),
    }
).filter(lambda parallel: world_size(parallel) <= 8)


@given(model=models(), parallel=parallels, uneven=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_identity_or_a_refusal_with_the_numbers(model, parallel, uneven):
    config, layers = model
    experts = any(config.get(key) for key in ("num_experts", "n_routed_experts", "num_local_experts"))
    if not experts:
        parallel = {**parallel, "expert": 1, "expert_tensor": 1}
    if parallel["tensor"] == 1:
        parallel = {**parallel, "sequence_parallel": False}
    megatron = {"num_layers_in_first_pipeline_stage": layers - parallel["pipeline"] + 1} if uneven and parallel["pipeline"] > 1 else {}
    try:
        check_identity(config, parallel, mtp=bool(config.get("num_nextn_predict_layers")), megatron=megatron)
    except UserError as refusal:
        event("refused")
        text = str(refusal)
        assert any(str(parallel[key]) in text for key in ("tensor", "pipeline", "expert", "expert_tensor")), text
        assert sum(character.isdigit() for character in text) >= 2, text
    else:
        event("identity")


@pytest.mark.parametrize("flag", [{"tie_word_embeddings": True}, {"tie_word_embeddings": False}, {}])
@pytest.mark.parametrize("parallel", [{"pipeline": 2}, {"tensor": 4, "sequence_parallel": True}], ids=["pp2", "tp4"])
def test_tied_untied_and_absent_with_a_vocabulary_that_does_not_divide(flag, parallel):
    config = {key: value for key, value in BY_NAME["qwen3"].config.items() if key != "tie_word_embeddings"}
    check_identity({**config, **flag, "vocab_size": 67, "num_key_value_heads": 4}, parallel)


def test_more_tensor_ranks_than_key_value_heads_are_refused_with_both_numbers():
    with pytest.raises(UserError, match="parallel.tensor 4 .* 2 key/value heads"):
        check_identity(BY_NAME["qwen3"].config, {"tensor": 4})
