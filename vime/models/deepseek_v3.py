"""DeepSeek-V3 (arXiv 2412.19437) and models built like it: multi-head latent attention, sigmoid routing with a correction bias and expert groups, a shared
expert, dense first layers, multi-token prediction. GLM-4.7-Flash differs in its sizes alone."""

from __future__ import annotations

from typing import Any

from vime.errors import UserError
from vime.models.base import HfConfig, need, setting, tied
from vime.models.decoder import Decoder, Experts, Latent
from vime.models.qwen3 import refuse_other
from vime.models.rope import read_rope
from vime.models.text import TextFamily


class DeepseekV3(TextFamily):
    """Hugging Face's DeepseekV3ForCausalLM: DeepSeek-V3 and R1, Moonlight."""

    name = "deepseek-v3"
    title = "DeepSeek-V3"
    model_types = ("deepseek_v3",)
    has_experts = True

    def decoder(self, hf_config: HfConfig) -> Decoder:
        return Decoder(**latent_facts(hf_config, self.name, dense=3))


class Glm4MoeLite(TextFamily):
    """Hugging Face's Glm4MoeLiteForCausalLM: GLM-4.7-Flash."""

    name = "glm4-moe-lite"
    title = "GLM-4.7-Flash"
    model_types = ("glm4_moe_lite",)
    has_experts = True

    def decoder(self, hf_config: HfConfig) -> Decoder:
        return Decoder(**latent_facts(hf_config, self.name, dense=1))


def latent_facts(hf_config: HfConfig, family: str, dense: int) -> dict[str, Any]:
    """`dense`: the class's default of first_k_dense_replace."""
    refuse_other(hf_config, family, hidden_act="silu", attention_bias=False, rope_interleave=True, moe_layer_freq=1, scoring_func="sigmoid")
    heads, layers = need(hf_config, "num_attention_heads"), need(hf_config, "num_hidden_layers")
    rope = read_rope(hf_config)
    if rope.kind not in ("default", "yarn"):
        raise UserError(f"config.json: rope type {rope.kind!r} is not supported with latent attention: only 'default' and 'yarn' are")
    attention = Latent(
        heads=heads,
        q_rank=hf_config.get("q_lora_rank"),
        kv_rank=need(hf_config, "kv_lora_rank"),
        nope=need(hf_config, "qk_nope_head_dim"),
        rope=need(hf_config, "qk_rope_head_dim"),
        value=need(hf_config, "v_head_dim"),
    )
    return {
        "layers": layers,
        "hidden": need(hf_config, "hidden_size"),
        "ffn": need(hf_config, "intermediate_size"),
        "vocab": need(hf_config, "vocab_size"),
        "eps": setting(hf_config, "rms_norm_eps", 1e-6),
        "tied": tied(hf_config),
        "attention": attention,
        "rope": rope,
        "max_positions": setting(hf_config, "max_position_embeddings", 4096),
        "experts": corrected_experts(hf_config, family),
        "sparse": sparse_layers(hf_config, layers, dense),
        "mtp": mtp_count(hf_config),
    }


def corrected_experts(hf_config: HfConfig, family: str) -> Experts:
    """Sigmoid routing with a correction bias, as DeepSeek-V3 and GLM-4 have it."""
    ffn, top_k = need(hf_config, "moe_intermediate_size"), need(hf_config, "num_experts_per_tok")
    if top_k > 1:
        refuse_other(hf_config, family, norm_topk_prob=True)
    return Experts(
        count=need(hf_config, "n_routed_experts"),
        top_k=top_k,
        ffn=ffn,
        score="sigmoid",
        bias=True,
        scale=float(setting(hf_config, "routed_scaling_factor", 1.0)),
        groups=setting(hf_config, "n_group", 1),
        groups_kept=setting(hf_config, "topk_group", 1),
        shared=ffn * (setting(hf_config, "n_shared_experts", 0) or 0),
    )


def sparse_layers(hf_config: HfConfig, layers: int, dense: int) -> tuple[bool, ...]:
    """From `mlp_layer_types` where it is given, else all but the first `first_k_dense_replace`."""
    kinds = setting(hf_config, "mlp_layer_types", None)
    if kinds is not None:
        if len(kinds) != layers:
            raise UserError(f"config.json: mlp_layer_types names {len(kinds)} layers, num_hidden_layers is {layers}")
        return tuple(kind == "sparse" for kind in kinds)
    first = setting(hf_config, "first_k_dense_replace", dense)
    return tuple(index >= first for index in range(layers))


def mtp_count(hf_config: HfConfig) -> int:
    """Multi-token-prediction layers in the checkpoint; absent: none."""
    return int(setting(hf_config, "num_nextn_predict_layers", setting(hf_config, "num_mtp_layers", 0)))
