"""A tiny model of every family, with the structure that parallel layouts cut: more layers than stages, experts, shared experts, dense first layers, latents."""

from __future__ import annotations

from typing import Any

from tests.training.ranks import TWIN

VOCABULARY = 67  # odd: tensor ranks pad it
COMMON = {**TWIN, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "tie_word_embeddings": False}
SHARED_EXPERT = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
LATENT = {
    **{key: value for key, value in COMMON.items() if key != "head_dim"},
    **SHARED_EXPERT,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
}
DELTA_NET = {
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}

MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {**COMMON, "num_hidden_layers": 3},
    "qwen3-tied": {**COMMON, "tie_word_embeddings": True},
    "llama": {**COMMON, "model_type": "llama", "num_hidden_layers": 4},
    "qwen3-moe": {
        **COMMON,
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    "glm4-moe": {**COMMON, **SHARED_EXPERT, "model_type": "glm4_moe", "attention_bias": True, "use_qk_norm": True},
    "glm4-moe-lite": {**LATENT, "model_type": "glm4_moe_lite"},
    "deepseek-v3": {**LATENT, "model_type": "deepseek_v3", "n_group": 2, "topk_group": 1},
    "glm4-moe-mtp": {**COMMON, **SHARED_EXPERT, "model_type": "glm4_moe", "attention_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 1},
    "minimax-m2": {
        **COMMON,
        "model_type": "minimax_m2",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "rotary_dim": 16,
    },
    "qwen3-5": {**COMMON, **DELTA_NET, "model_type": "qwen3_5_text"},
    "qwen3-5-moe": {
        **COMMON,
        **DELTA_NET,
        "model_type": "qwen3_5_moe_text",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
}
SPARSE = tuple(name for name, config in MODELS.items() if {"num_experts", "n_routed_experts", "num_local_experts"} & config.keys())
