"""Qwen3: GQA with per-head RMSNorm of queries and keys, SwiGLU, no biases, tied or untied embeddings; dense, or with routed experts in the place of the MLP."""

from __future__ import annotations

from typing import Any

from vime.errors import UserError
from vime.models.base import HfConfig, need, setting, tied
from vime.models.decoder import Decoder, Experts, GroupedQuery
from vime.models.rope import read_rope
from vime.models.text import TextFamily


class Qwen3(TextFamily):
    """Hugging Face's Qwen3ForCausalLM."""

    name = "qwen3"
    title = "Qwen3"
    model_types = ("qwen3",)

    def decoder(self, hf_config: HfConfig) -> Decoder:
        return Decoder(**facts(hf_config, self.name))


class Qwen3Moe(TextFamily):
    """Hugging Face's Qwen3MoeForCausalLM: softmax routing, no shared expert; some layers may stay dense."""

    name = "qwen3-moe"
    title = "Qwen3 MoE"
    model_types = ("qwen3_moe",)
    has_experts = True

    def decoder(self, hf_config: HfConfig) -> Decoder:
        return Decoder(**facts(hf_config, self.name), **experts(hf_config))


def facts(hf_config: HfConfig, family: str) -> dict[str, Any]:
    """What both have."""
    refuse_other(hf_config, family, hidden_act="silu", use_sliding_window=False)
    heads = need(hf_config, "num_attention_heads")
    attention = GroupedQuery(
        heads=heads,
        kv_heads=setting(hf_config, "num_key_value_heads", heads),
        head_dim=setting(hf_config, "head_dim", 128),
        qkv_bias=setting(hf_config, "attention_bias", False),
        out_bias=setting(hf_config, "attention_bias", False),
        qk_norm="head",
    )
    return {
        "layers": need(hf_config, "num_hidden_layers"),
        "hidden": need(hf_config, "hidden_size"),
        "ffn": need(hf_config, "intermediate_size"),
        "vocab": need(hf_config, "vocab_size"),
        "eps": setting(hf_config, "rms_norm_eps", 1e-6),
        "tied": tied(hf_config),
        "attention": attention,
        "rope": read_rope(hf_config),
        "max_positions": setting(hf_config, "max_position_embeddings", 32768),
    }


def experts(hf_config: HfConfig) -> dict[str, Any]:
    """The routed experts and the layers that have them."""
    count = setting(hf_config, "num_experts", None) or need(hf_config, "num_local_experts")  # transformers 5 writes the second name
    layers = need(hf_config, "num_hidden_layers")
    step, dense = setting(hf_config, "decoder_sparse_step", 1), set(setting(hf_config, "mlp_only_layers", None) or ())
    routed = Experts(
        count=count,
        top_k=need(hf_config, "num_experts_per_tok"),
        ffn=need(hf_config, "moe_intermediate_size"),
        score="softmax",
        normalise=setting(hf_config, "norm_topk_prob", False),
    )
    return {"experts": routed, "sparse": tuple(index not in dense and (index + 1) % step == 0 for index in range(layers))}


def refuse_other(hf_config: HfConfig, family: str, **only: Any) -> None:
    """Raises UserError where config.json sets one of these keys to another value; absent keys have it."""
    for key, value in only.items():
        found = setting(hf_config, key, value)
        if found != value:
            raise UserError(f"config.json: {key} {found!r} is not supported by the {family} family: only {value!r} is")
