"""Qwen3, dense: GQA with per-head RMSNorm of queries and keys, SwiGLU, no biases, tied or untied embeddings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vime.config.tree import ParallelConfig
from vime.errors import UserError
from vime.models.base import HfConfig, Layout, ModelShape, Piece, WeightTable, padded_vocab, rows, setting, share, whole

if TYPE_CHECKING:
    import torch
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.spec_utils import ModuleSpec

LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
# Parameters that every tensor-parallel rank holds whole: Megatron's name -> Hugging Face's. The second form of a norm is TransformerEngine's, part of the
# linear after it.
REPLICATED = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}


class Qwen3:
    """The family `qwen3` (Hugging Face's Qwen3ForCausalLM)."""

    name = "qwen3"

    def matches(self, hf_config: HfConfig) -> bool:
        return hf_config.get("model_type") == "qwen3"

    def shape(self, hf_config: HfConfig) -> ModelShape:
        _refuse_unsupported(hf_config)
        return ModelShape(
            vocab_size=_need(hf_config, "vocab_size"),
            max_position_embeddings=setting(hf_config, "max_position_embeddings", 32768),
            rotary_base=rope_theta(hf_config),
            tied=tied(hf_config),
        )

    def megatron_config(self, hf_config: HfConfig, parallel: ParallelConfig, overrides: Mapping[str, Any]) -> TransformerConfig:
        import torch
        from megatron.core.transformer import TransformerConfig

        _refuse_unsupported(hf_config)
        sizes = _Sizes(hf_config)
        share("attention heads", sizes.heads, parallel.tensor, "parallel.tensor")
        if sizes.kv_heads % parallel.tensor:
            raise UserError(
                f"parallel.tensor {parallel.tensor} does not divide the model's {sizes.kv_heads} key/value heads: choose a divisor of {sizes.kv_heads}"
            )
        share("intermediate size", sizes.ffn, parallel.tensor, "parallel.tensor")
        values: dict[str, Any] = {
            "num_layers": sizes.layers,
            "hidden_size": sizes.hidden,
            "ffn_hidden_size": sizes.ffn,
            "num_attention_heads": sizes.heads,
            "num_query_groups": sizes.kv_heads,
            "kv_channels": sizes.head_dim,
            "normalization": "RMSNorm",
            "layernorm_epsilon": setting(hf_config, "rms_norm_eps", 1e-6),
            "qk_layernorm": True,
            "gated_linear_unit": True,
            "activation_func": torch.nn.functional.silu,
            "add_bias_linear": False,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        }
        return TransformerConfig(**{**values, **overrides})

    def layer_spec(self, config: TransformerConfig, core_attention: type | None) -> ModuleSpec:
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec

        if core_attention is None:
            return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=True)
        spec = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
        spec.submodules.self_attention.submodules.core_attention = core_attention
        return spec

    def weight_table(self, hf_config: HfConfig) -> WeightTable:
        sizes = _Sizes(hf_config)
        return WeightTable(shapes=sizes.tensors(), find=_Table(sizes).pieces, tied=sizes.tied)


class _Sizes:
    """The sizes of config.json under short names."""

    def __init__(self, hf_config: HfConfig):
        self.layers: int = _need(hf_config, "num_hidden_layers")
        self.hidden: int = _need(hf_config, "hidden_size")
        self.ffn: int = _need(hf_config, "intermediate_size")
        self.heads: int = _need(hf_config, "num_attention_heads")
        self.kv_heads: int = setting(hf_config, "num_key_value_heads", self.heads)
        self.head_dim: int = setting(hf_config, "head_dim", 128)
        self.vocab: int = _need(hf_config, "vocab_size")
        self.tied = tied(hf_config)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint with its shape."""
        hidden, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, hidden)}
        for index in range(self.layers):
            layer = {
                "input_layernorm.weight": (hidden,),
                "self_attn.q_proj.weight": (q, hidden),
                "self_attn.k_proj.weight": (kv, hidden),
                "self_attn.v_proj.weight": (kv, hidden),
                "self_attn.q_norm.weight": (self.head_dim,),
                "self_attn.k_norm.weight": (self.head_dim,),
                "self_attn.o_proj.weight": (hidden, q),
                "post_attention_layernorm.weight": (hidden,),
                "mlp.gate_proj.weight": (self.ffn, hidden),
                "mlp.up_proj.weight": (self.ffn, hidden),
                "mlp.down_proj.weight": (hidden, self.ffn),
            }
            out.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
        out["model.norm.weight"] = (hidden,)
        if not self.tied:
            out["lm_head.weight"] = (self.vocab, hidden)
        return out


class _Table:
    """Finds the pieces of a parameter."""

    def __init__(self, sizes: _Sizes):
        self.sizes = sizes
        self.shapes = sizes.tensors()

    def pieces(self, name: str, layout: Layout) -> list[Piece]:
        if name == "embedding.word_embeddings.weight":
            return self._vocabulary("model.embed_tokens.weight", layout)
        if name == "output_layer.weight":  # with tied embeddings only a last stage apart from the first holds one: a copy of the embedding
            return self._vocabulary("model.embed_tokens.weight", layout, copy=True) if self.sizes.tied else self._vocabulary("lm_head.weight", layout)
        if name == "decoder.final_layernorm.weight":
            return [self._whole("model.norm.weight")]
        match = LAYER.fullmatch(name)
        if match is None:
            raise KeyError(f"qwen3: no parameter {name}")
        return self._layer(f"model.layers.{int(match[1]) + layout.layer_offset}.", match[2], layout)

    def _layer(self, prefix: str, name: str, layout: Layout) -> list[Piece]:
        if name in REPLICATED:
            return [self._whole(prefix + REPLICATED[name])]
        if name == "self_attention.linear_qkv.weight":
            return self._qkv(prefix + "self_attn.", layout)
        if name == "self_attention.linear_proj.weight":
            return [self._columns(prefix + "self_attn.o_proj.weight", layout)]
        if name == "mlp.linear_fc1.weight":
            return [self._half(prefix + f"mlp.{part}_proj.weight", index, layout) for index, part in enumerate(("gate", "up"))]
        if name == "mlp.linear_fc2.weight":
            return [self._columns(prefix + "mlp.down_proj.weight", layout)]
        raise KeyError(f"qwen3: no parameter {name} in a layer")

    def _whole(self, hf_name: str) -> Piece:
        shape = self.shapes[hf_name]
        return Piece(hf_name, shape, whole(shape), _identity)

    def _columns(self, hf_name: str, layout: Layout) -> Piece:
        """A linear whose input is split: [out, in / tp]."""
        shape = self.shapes[hf_name]
        width = shape[1] // layout.tp_size
        return Piece(hf_name, shape, (slice(0, shape[0]), slice(layout.tp * width, (layout.tp + 1) * width)), _identity, split=True)

    def _half(self, hf_name: str, index: int, layout: Layout) -> Piece:
        """gate or up: the parameter is [2, ffn / tp, hidden] flattened."""
        shape = self.shapes[hf_name]
        count = shape[0] // layout.tp_size
        return Piece(hf_name, shape, rows(hf_name, shape, layout.tp * count, (layout.tp + 1) * count), lambda w: w.view(2, count, shape[1])[index], split=True)

    def _qkv(self, prefix: str, layout: Layout) -> list[Piece]:
        """The parameter is [kv heads / tp, (q heads per kv head + 2)·head_dim, hidden] flattened: each kv head's queries, then its key, then its value."""
        sizes = self.sizes
        groups, per_group, dim = sizes.kv_heads // layout.tp_size, sizes.heads // sizes.kv_heads, sizes.head_dim
        out = []
        for part, first, count in (("q", 0, per_group), ("k", per_group, 1), ("v", per_group + 1, 1)):
            hf_name = f"{prefix}{part}_proj.weight"
            shape, height = self.shapes[hf_name], groups * count * dim
            out.append(
                Piece(
                    hf_name,
                    shape,
                    rows(hf_name, shape, layout.tp * height, (layout.tp + 1) * height),
                    _heads(groups, per_group + 2, dim, first, count),
                    split=True,
                )
            )
        return out

    def _vocabulary(self, hf_name: str, layout: Layout, copy: bool = False) -> list[Piece]:
        """Rows of this rank's slice of the padded vocabulary; the last ranks may hold fewer real rows, or none."""
        shape = self.shapes[hf_name]
        height = padded_vocab(shape[0], layout.tp_size) // layout.tp_size
        start, stop = min(layout.tp * height, shape[0]), min((layout.tp + 1) * height, shape[0])
        if start == stop:
            return []
        return [Piece(hf_name, shape, rows(hf_name, shape, start, stop), lambda w: w[: stop - start], split=True, copy=copy)]


def _identity(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _heads(groups: int, per_group: int, dim: int, first: int, count: int) -> Any:
    return lambda weight: weight.view(groups, per_group, dim, weight.shape[-1])[:, first : first + count]


def tied(hf_config: HfConfig) -> bool:
    """Whether the output layer is the embedding. The flag may stand at the top, in a nested text_config, or be absent (Qwen3Config's default: untied)."""
    return bool(setting(hf_config, "tie_word_embeddings", False))


def rope_theta(hf_config: HfConfig) -> float:
    """The rotary base: `rope_parameters.rope_theta` (transformers 5) or `rope_theta` (before). Raises UserError on a scaled rotary embedding."""
    parameters = setting(hf_config, "rope_parameters", None) or setting(hf_config, "rope_scaling", None) or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UserError(f"config.json: rope type {kind!r} is not supported by the qwen3 family: only 'default' is")
    return float(parameters.get("rope_theta", setting(hf_config, "rope_theta", 10000.0)))


def _need(hf_config: HfConfig, key: str) -> Any:
    value = setting(hf_config, key, None)
    if value is None:
        raise UserError(f"config.json: {key} is missing")
    return value


def _refuse_unsupported(hf_config: HfConfig) -> None:
    for key, only, default in (("hidden_act", "silu", "silu"), ("attention_bias", False, False), ("use_sliding_window", False, False)):
        value = setting(hf_config, key, default)
        if value != only:
            raise UserError(f"config.json: {key} {value!r} is not supported by the qwen3 family: only {only!r} is")
