"""A model's shape, read from its config.json: what each layer holds, exactly, and how it divides over tensor- and expert-parallel ranks.

Counts are of the Hugging Face checkpoint's tensors, biases and norms included. `tests/matrix/test_architecture.py` holds them to the published totals and to
the Hugging Face classes themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from matrix.vision import vision_parameters


class UnknownArchitecture(ValueError):
    """A config.json that this file cannot read; the message names what is missing."""


@dataclass(frozen=True)
class Layer:
    """One decoder layer. Parameters: `split` divides over tensor-parallel ranks, `whole` lies on each, `experts` divides over expert-parallel ranks.

    The widths are elements of one token that a backward pass needs (`matrix/memory.py`); the caches are what an engine keeps.
    """

    split: int
    whole: int
    experts: int = 0
    attention_width: int = 0  # query, key, value and attention output of one token, all heads
    mlp_width: int = 0  # gate, up and their product, of one token
    expert_width: int = 0  # the same of the experts one token is sent to, with the token's copies
    kv_split: int = 0  # cached elements per token that divide over tensor-parallel ranks, down to one KV head
    kv_whole: int = 0  # cached elements per token on every rank (a latent of MLA)
    state: int = 0  # cached elements per sequence (linear attention), divided over tensor-parallel ranks

    @property
    def parameters(self) -> int:
        return self.split + self.whole + self.experts


SUMMED = ("split", "whole", "experts", "attention_width", "mlp_width", "expert_width", "kv_split", "kv_whole", "state")


@dataclass(frozen=True)
class Architecture:
    """A whole model. `head` is 0 where the output layer is the embedding; `mtp` are the multi-token-prediction layers that the checkpoint holds."""

    family_class: str
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    experts: int
    ffn: int
    layers: tuple[Layer, ...]
    embedding: int
    head: int
    final_norm: int
    mtp: tuple[Layer, ...]
    vision: int
    max_positions: int
    latent: bool  # multi-latent attention: the cache has no heads to divide

    @cached_property
    def parameters(self) -> int:
        """Of the model that generates, without MTP layers (as published totals of dense and MoE models count)."""
        return self.embedding + self.head + self.final_norm + self.vision + sum(layer.parameters for layer in self.layers)

    @cached_property
    def sums(self) -> dict[str, list[int]]:
        """Running sums over the layers, by field: what layers i to j - 1 hold is `sums[field][j] - sums[field][i]`."""
        return {name: list(accumulate((getattr(layer, name) for layer in self.layers), initial=0)) for name in SUMMED}

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The layers that differ from each other."""
        return tuple(dict.fromkeys(self.layers))

    @cached_property
    def mtp_parameters(self) -> int:
        return sum(layer.parameters for layer in self.mtp)


SIZES = frozenset(
    ["hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "moe_intermediate_size"]
)


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The shape of the model a config.json describes. Raises UnknownArchitecture for a model type or a missing size."""
    text = text_config(config)
    kind = str(text.get("model_type"))
    for name in SIZES & text.keys():
        size = text[name]
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
            raise UnknownArchitecture(f"'{name}' in the architecture of a '{kind}' is {size!r}: a whole number is wanted")
    try:
        return _read(config, text, kind)
    except KeyError as error:
        raise UnknownArchitecture(f"the architecture of a '{kind}' needs '{error.args[0]}'") from None
    except TypeError:
        raise UnknownArchitecture(f"a size in the architecture of a '{kind}' is no whole number") from None


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config.json that describes the language model."""
    inner: Any = config
    for name in ("thinker_config", "text_config"):
        inner = inner.get(name, inner)
    return inner


def _read(config: Mapping[str, Any], text: Mapping[str, Any], kind: str) -> Architecture:
    if kind not in KINDS:
        raise UnknownArchitecture(f"no shape is known for model_type '{kind}'; known: {', '.join(sorted(KINDS))}")
    hidden, vocabulary = text["hidden_size"], text["vocab_size"]
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    layers = tuple(_layer(text, kind, index) for index in range(text["num_hidden_layers"]))
    return Architecture(
        family_class=kind,
        hidden=hidden,
        vocabulary=vocabulary,
        heads=text["num_attention_heads"],
        kv_heads=text.get("num_key_value_heads") or text["num_attention_heads"],
        experts=number_of_experts(text),
        ffn=text.get("intermediate_size") or text["moe_intermediate_size"],
        layers=layers,
        embedding=hidden * vocabulary,
        head=0 if tied else hidden * vocabulary,
        final_norm=hidden,
        mtp=_mtp(text, kind, layers),
        vision=vision_parameters(config["vision_config"]) if config.get("vision_config") else 0,
        max_positions=text["max_position_embeddings"],
        latent="kv_lora_rank" in text,
    )


def number_of_experts(text: Mapping[str, Any]) -> int:
    """Routed experts of a layer; 0 in a dense model."""
    return int(next((text[name] for name in ("num_experts", "n_routed_experts", "num_local_experts") if text.get(name)), 0))


def _layer(text: Mapping[str, Any], kind: str, index: int) -> Layer:
    kinds = text.get("layer_types")
    linear = kinds is not None and kinds[index] == "linear_attention"
    attention = _gated_delta_net(text) if linear else _latent(text) if "kv_lora_rank" in text else _grouped(text, kind)
    dense = not number_of_experts(text) or index < text.get("first_k_dense_replace", 0) or index in text.get("mlp_only_layers", ())
    mlp = _dense_mlp(text) if dense else _moe(text)
    return _joined(attention, mlp, Layer(0, 2 * text["hidden_size"]))


def _joined(*parts: Layer) -> Layer:
    first = parts[0]
    total = {name: sum(getattr(part, name) for part in parts) for name in ("split", "whole", "experts", "attention_width", "mlp_width", "expert_width")}
    return Layer(**total, kv_split=first.kv_split, kv_whole=first.kv_whole, state=first.state)


def _grouped(text: Mapping[str, Any], kind: str) -> Layer:
    """Grouped-query attention (Ainslie et al. 2023): q and o of `heads`, k and v of `kv_heads`."""
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    kv_heads = text.get("num_key_value_heads") or heads
    size = text.get("head_dim") or hidden // heads
    query, key = heads * size, kv_heads * size
    gate = query if text.get("attn_output_gate") else 0
    split = hidden * (query + gate + 2 * key) + query * hidden
    if text.get("attention_bias"):
        split += query + 2 * key
    biased_output = text.get("attention_bias") and kind not in ("glm4_moe",)
    norms = {"per_head": 2 * size, "per_layer": query + key, "none": 0}[_query_key_norm(text, kind)]
    return Layer(split, norms + (hidden if biased_output else 0), attention_width=2 * query + gate + 2 * key, kv_split=2 * key)


def _query_key_norm(text: Mapping[str, Any], kind: str) -> str:
    if kind == "minimax_m2":
        return "per_layer" if text.get("use_qk_norm", True) else "none"
    if kind == "glm4_moe":
        return "per_head" if text.get("use_qk_norm") else "none"
    return "none" if kind == "llama" else "per_head"


def _latent(text: Mapping[str, Any]) -> Layer:
    """Multi-latent attention (DeepSeek-V2, section 2.1): keys and values are rebuilt from one latent a token; with `index_n_heads` also the sparse indexer."""
    hidden, heads = text["hidden_size"], text["num_attention_heads"]
    nope, rope, value, latent = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"], text["kv_lora_rank"]
    rank = text.get("q_lora_rank")
    whole = hidden * (latent + rope) + latent + (hidden * rank + rank if rank else 0)
    split = (rank or hidden) * heads * (nope + rope) + latent * heads * (nope + value) + heads * value * hidden
    width = heads * (2 * (nope + rope) + 2 * value) + latent + rope
    index_heads, index_size = text.get("index_n_heads", 0), text.get("index_head_dim", 0)
    if index_heads:
        whole += rank * index_heads * index_size + hidden * index_size + 2 * index_size + hidden * index_heads
    return Layer(split, whole, attention_width=width, kv_whole=latent + rope + (index_size if index_heads else 0))


def _gated_delta_net(text: Mapping[str, Any]) -> Layer:
    """Gated delta net (Yang et al. 2024): projections to q, k, v, z, beta and alpha, a short convolution, and a state of key × value sizes a head."""
    hidden, heads, size = text["hidden_size"], text["linear_num_value_heads"], text["linear_value_head_dim"]
    key, value = text["linear_num_key_heads"] * text["linear_key_head_dim"], heads * size
    channels = 2 * key + value
    split = hidden * (channels + value + 2 * heads) + channels * text["linear_conv_kernel_dim"] + 2 * heads + value * hidden
    state = heads * text["linear_key_head_dim"] * size + channels * (text["linear_conv_kernel_dim"] - 1)
    return Layer(split, size, attention_width=2 * channels + 2 * value + 2 * heads, state=state)


def _dense_mlp(text: Mapping[str, Any]) -> Layer:
    size = text["intermediate_size"]
    return Layer(3 * text["hidden_size"] * size, 0, mlp_width=3 * size)


def _moe(text: Mapping[str, Any]) -> Layer:
    """Router, routed experts and the shared expert. A sigmoid router keeps one correction bias an expert (DeepSeek-V3, section 2.1.2)."""
    hidden, experts, chosen = text["hidden_size"], number_of_experts(text), text["num_experts_per_tok"]
    size = text.get("moe_intermediate_size") or text["intermediate_size"]
    whole = hidden * experts + (experts if has_router_bias(text) else 0)
    shared = text.get("shared_expert_intermediate_size") or text.get("n_shared_experts", 0) * size
    if text.get("shared_expert_intermediate_size"):
        whole += hidden  # its gate
    return Layer(3 * hidden * shared, whole, 3 * hidden * size * experts, mlp_width=3 * shared, expert_width=chosen * (3 * size + 2 * hidden))


def has_router_bias(text: Mapping[str, Any]) -> bool:
    return str(text.get("model_type")) in ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "minimax_m2")


def _mtp(text: Mapping[str, Any], kind: str, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Multi-token prediction (DeepSeek-V3, section 2.2): a projection of two hidden states, three norms, one layer; embedding and head are shared."""
    if kind == "minimax_m2":
        return ()  # named in the config, not in the checkpoint
    count = text.get("num_nextn_predict_layers", text.get("mtp_num_hidden_layers", 0)) or 0
    hidden = text["hidden_size"]
    return tuple(_joined(layers[-1], Layer(0, 2 * hidden * hidden + 3 * hidden)) for _ in range(count))


KINDS = frozenset(
    {
        "llama", "qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_omni_moe_text",
        "deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "minimax_m2",
    }
)  # fmt: skip
