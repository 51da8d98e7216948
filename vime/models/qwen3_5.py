"""Qwen3.5: three layers of gated delta net to one of gated full attention, zero-centred norms, a quarter of each head rotated; dense or with experts.

The published checkpoints are vision-language models with the text model nested in them (`model.language_model.`); a text-only checkpoint has the same
tensors under `model.`. Both forms load, train and export.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.errors import UserError
from vime.models.base import Built, HfConfig, Layout, Piece, Stored, need, rows, setting, share, text_config, tied
from vime.models.decoder import Decoder, Experts, GroupedQuery, Names, decoder_rules, expert_rules, mlp_rules
from vime.models.qwen3 import refuse_other
from vime.models.rope import read_rope
from vime.models.rules import Columns, Rows, Rule, Shape, View, Whole
from vime.models.vision_family import VisionFamily

if TYPE_CHECKING:
    from collections.abc import Mapping

    from megatron.core.transformer import TransformerConfig

    from vime.config.tree import ParallelConfig

ROTATED = 0.25  # of each head, unless config.json says otherwise
EXPERT = re.compile(r"(.+\.mlp\.experts\.)(\d+)\.(gate|up|down)_proj\.weight")
MTP_LAYERS = "mtp_num_hidden_layers"
INTERVAL = 4  # one layer in so many has full attention, unless config.json lists the kinds


@dataclass(frozen=True)
class DeltaNet:
    """The gated delta net of a layer: heads and their widths, and the width of the convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class HybridDecoder(Decoder):
    """A decoder some of whose layers are `linear`, the others of full attention."""

    delta: DeltaNet = DeltaNet(16, 32, 128, 128, 4)
    linear: tuple[bool, ...] = ()

    def is_linear(self, layer: int) -> bool:
        return layer < self.layers and self.linear[layer]


class Qwen3_5(VisionFamily):
    """Hugging Face's Qwen3_5ForConditionalGeneration and Qwen3_5ForCausalLM."""

    name = "qwen3-5"
    title = "Qwen3.5"
    model_types = ("qwen3_5", "qwen3_5_text")

    def decoder(self, hf_config: HfConfig) -> HybridDecoder:
        return HybridDecoder(**facts(hf_config, self.name), ffn=need(text_config(hf_config), "intermediate_size"))

    def rules(self, decoder: Decoder, *, mtp: bool) -> dict[str, Rule]:
        return decoder_rules(decoder, mtp=False, layer=hybrid_layer) | (mtp_rules(decoder) if mtp and decoder.mtp else {})

    def megatron_config(self, hf_config: HfConfig, parallel: ParallelConfig, overrides: Mapping[str, Any], *, mtp: bool = False) -> TransformerConfig:
        delta = self.decoder(hf_config).delta
        share("linear attention's key heads", delta.key_heads, parallel.tensor, "parallel.tensor")
        share("linear attention's value heads", delta.value_heads, parallel.tensor, "parallel.tensor")
        return super().megatron_config(hf_config, parallel, overrides, mtp=mtp)

    def megatron_values(self, decoder: Decoder) -> dict[str, Any]:
        assert isinstance(decoder, HybridDecoder)
        delta = decoder.delta
        return super().megatron_values(decoder) | {
            "layernorm_zero_centered_gamma": True,
            "attention_output_gate": True,
            # without Megatron's `experimental_attention_variant`, which stands for its own module and refuses context parallelism
            "linear_attention_freq": [int(linear) for linear in decoder.linear],
            "linear_conv_kernel_dim": delta.kernel,
            "linear_key_head_dim": delta.key_dim,
            "linear_value_head_dim": delta.value_dim,
            "linear_num_key_heads": delta.key_heads,
            "linear_num_value_heads": delta.value_heads,
        }

    def layer_spec(self, decoder: Decoder, built: Built) -> Any:
        from vime.models.hybrid_spec import block_spec

        return block_spec(built)

    def draft(self, built: Built) -> dict[str, Any]:
        from vime.models.hybrid_spec import mtp_block_spec

        return {"mtp_block_spec": mtp_block_spec(built)}

    def exported_config(self, hf_config: HfConfig, *, mtp: bool = False) -> dict[str, Any]:
        out = super().exported_config(hf_config, mtp=mtp)
        if mtp or not self.decoder(hf_config).mtp:
            return out
        without = {MTP_LAYERS: 0}
        return {**out, "text_config": {**out["text_config"], **without}} if "text_config" in out else {**out, **without}


class Qwen3_5Moe(Qwen3_5):
    """Hugging Face's Qwen3_5MoeForConditionalGeneration and Qwen3_5MoeForCausalLM: every layer has softmax-routed experts and a gated shared one."""

    name = "qwen3-5-moe"
    title = "Qwen3.5 MoE"
    model_types = ("qwen3_5_moe", "qwen3_5_moe_text")
    has_experts = True

    def decoder(self, hf_config: HfConfig) -> HybridDecoder:
        text, base = text_config(hf_config), facts(hf_config, self.name)
        experts = Experts(
            count=need(text, "num_experts"),
            top_k=need(text, "num_experts_per_tok"),
            ffn=need(text, "moe_intermediate_size"),
            score="softmax",
            shared=need(text, "shared_expert_intermediate_size"),
            shared_gate=True,
        )
        sparse = (True,) * base["layers"]
        return HybridDecoder(**base, ffn=experts.ffn, experts=experts, sparse=sparse, names=Names(shared="mlp.shared_expert."))

    def stored(self, decoder: Decoder, name: str) -> Stored | None:
        """The published checkpoints hold all experts of a layer in two tensors."""
        routed, match = decoder.experts, EXPERT.fullmatch(name)
        if match is None or routed is None:
            return None
        expert, everything = int(match[2]), slice(0, decoder.hidden)
        if match[3] == "down":
            return Stored(f"{match[1]}down_proj", (routed.count, decoder.hidden, routed.ffn), (expert, everything, slice(0, routed.ffn)))
        first = routed.ffn * (match[3] == "up")
        return Stored(f"{match[1]}gate_up_proj", (routed.count, 2 * routed.ffn, decoder.hidden), (expert, slice(first, first + routed.ffn), everything))


def facts(hf_config: HfConfig, family: str) -> dict[str, Any]:
    """What both have."""
    text = text_config(hf_config)
    refuse_other(text, family, hidden_act="silu", attention_bias=False, attn_output_gate=True, mamba_ssm_dtype="float32")
    layers, heads = need(text, "num_hidden_layers"), need(text, "num_attention_heads")
    delta = DeltaNet(
        key_heads=setting(text, "linear_num_key_heads", 16),
        value_heads=setting(text, "linear_num_value_heads", 32),
        key_dim=setting(text, "linear_key_head_dim", 128),
        value_dim=setting(text, "linear_value_head_dim", 128),
        kernel=setting(text, "linear_conv_kernel_dim", 4),
    )
    if delta.value_heads % delta.key_heads:
        raise UserError(f"config.json: linear_num_value_heads {delta.value_heads} is no multiple of linear_num_key_heads {delta.key_heads}")
    attention = GroupedQuery(heads=heads, kv_heads=setting(text, "num_key_value_heads", heads), head_dim=setting(text, "head_dim", 256), qk_norm="head")
    return {
        "layers": layers,
        "hidden": need(text, "hidden_size"),
        "vocab": need(text, "vocab_size"),
        "eps": setting(text, "rms_norm_eps", 1e-6),
        "tied": tied(hf_config),
        "attention": attention,
        "rope": read_rope(text, percent=ROTATED),
        "max_positions": setting(text, "max_position_embeddings", 32768),
        "prefix": "model.language_model." if "text_config" in hf_config else "model.",
        "delta": delta,
        "linear": linear_layers(text, layers),
        "mtp": mtp_count(text, family),
    }


def mtp_count(text: HfConfig, family: str) -> int:
    """Multi-token-prediction layers: one, or none."""
    count = int(setting(text, MTP_LAYERS, 0))
    if count > 1 or setting(text, "mtp_use_dedicated_embeddings", False):
        raise UserError(f"config.json: {MTP_LAYERS} {count} with mtp_use_dedicated_embeddings is not supported by the {family} family: one layer without is")
    return count


def linear_layers(text: HfConfig, layers: int) -> tuple[bool, ...]:
    """Which layers are gated delta net, from `layer_types` or `full_attention_interval`."""
    kinds = setting(text, "layer_types", None)
    if kinds is None:
        interval = setting(text, "full_attention_interval", INTERVAL)
        return tuple(bool((index + 1) % interval) for index in range(layers))
    unknown = sorted(set(kinds) - {"linear_attention", "full_attention"})
    if unknown or len(kinds) != layers:
        raise UserError(f"config.json: layer_types has {len(kinds)} entries for {layers} layers{f', among them {unknown[0]!r}' if unknown else ''}")
    return tuple(kind == "linear_attention" for kind in kinds)


# ---- the weight table ------------------------------------------------------------------------------------------------------------------------------


def hybrid_layer(decoder: Decoder, index: int, hf: str) -> dict[str, Rule]:
    """One layer's entries."""
    assert isinstance(decoder, HybridDecoder)
    rules: dict[str, Rule] = {"input_layernorm.weight": Whole(f"{hf}input_layernorm.weight", (decoder.hidden,))}
    rules |= delta_rules(decoder, hf) if decoder.is_linear(index) else gated_attention_rules(decoder, hf)
    rules["pre_mlp_layernorm.weight"] = Whole(f"{hf}post_attention_layernorm.weight", (decoder.hidden,))
    return rules | (expert_rules(decoder, hf) if decoder.is_sparse(index) else mlp_rules(decoder, hf))


def mtp_rules(decoder: Decoder) -> dict[str, Rule]:
    """The multi-token-prediction layer: norms of embedding and hidden state, their projection, a layer of full attention, a norm. Embedding and head are the
    model's own."""
    hidden = decoder.hidden
    rules: dict[str, Rule] = {
        "enorm.weight": Whole("mtp.pre_fc_norm_embedding.weight", (hidden,)),
        "hnorm.weight": Whole("mtp.pre_fc_norm_hidden.weight", (hidden,)),
        "eh_proj.weight": Rows("mtp.fc.weight", (hidden, 2 * hidden)),
        "final_layernorm.weight": Whole("mtp.norm.weight", (hidden,)),
    }
    rules |= {f"transformer_layer.{name}": rule for name, rule in hybrid_layer(decoder, decoder.layers, "mtp.layers.0.").items()}
    return {f"mtp.layers.0.{name}": rule for name, rule in rules.items()}


def delta_rules(decoder: HybridDecoder, hf: str) -> dict[str, Rule]:
    """in_proj of a rank: its rows of queries, keys, values, gate z, beta and alpha, one after the other; the convolution likewise for q, k and v."""
    delta, hidden, own = decoder.delta, decoder.hidden, "self_attention."
    hf, qkv = f"{hf}linear_attn.", (("q", 0, delta.keys), ("k", delta.keys, delta.keys), ("v", 2 * delta.keys, delta.values))

    def joined(rest: Shape, name: str, more: tuple[tuple[str, int], ...] = ()) -> Joined:
        shape = (2 * delta.keys + delta.values, *rest)
        parts = [Span(hf + name, shape, start, size) for _, start, size in qkv]
        return Joined((*parts, *(Span(hf + other, (size, *rest), 0, size) for other, size in more)))

    projections = (("in_proj_z.weight", delta.values), ("in_proj_b.weight", delta.value_heads), ("in_proj_a.weight", delta.value_heads))
    return {
        f"{own}in_proj.weight": joined((hidden,), "in_proj_qkv.weight", projections),
        f"{own}conv1d.weight": joined((1, delta.kernel), "conv1d.weight"),
        f"{own}dt_bias": Rows(f"{hf}dt_bias", (delta.value_heads,)),
        f"{own}A_log": Rows(f"{hf}A_log", (delta.value_heads,)),
        f"{own}out_norm.weight": Whole(f"{hf}norm.weight", (delta.value_dim,)),
        f"{own}out_proj.weight": Columns(f"{hf}out_proj.weight", (hidden, delta.values)),
    }


def gated_attention_rules(decoder: Decoder, hf: str) -> dict[str, Rule]:
    attention, hidden, own = decoder.attention, decoder.hidden, "self_attention."
    assert isinstance(attention, GroupedQuery)
    hf, dim = f"{hf}self_attn.", attention.head_dim
    return {
        f"{own}linear_qkv.weight": GatedHeads(hf, attention.heads, attention.kv_heads, dim, hidden),
        **{f"{own}{part}_layernorm.weight": Whole(f"{hf}{part}_norm.weight", (dim,)) for part in ("q", "k")},
        f"{own}linear_proj.weight": Columns(f"{hf}o_proj.weight", (hidden, attention.heads * dim)),
    }


@dataclass(frozen=True)
class Span:
    """Rows [start, start + size) of a tensor."""

    name: str
    shape: Shape
    start: int
    size: int


@dataclass(frozen=True)
class Joined:
    """A column-parallel parameter of several spans, each split over the ranks by itself: a rank holds its share of the first, then of the second, …"""

    spans: tuple[Span, ...]

    def tensors(self) -> dict[str, Shape]:
        return {span.name: span.shape for span in self.spans}

    def pieces(self, layout: Layout) -> list[Piece]:
        first, out = 0, []
        for span in self.spans:
            height = span.size // layout.tp_size
            start = span.start + layout.tp * height
            out.append(Piece(span.name, span.shape, rows(span.name, span.shape, start, start + height), _window(first, height), split=True))
            first += height
        return out


def _window(first: int, height: int) -> View:
    return lambda weight: weight[first : first + height]


@dataclass(frozen=True)
class GatedHeads:
    """Queries with their output gates, keys and values: Megatron holds, for each kv head, its query heads, then their gates, then key and value; Hugging
    Face's q_proj holds each query head followed by its gate."""

    hf: str  # prefix
    heads: int
    groups: int  # kv heads
    dim: int
    hidden: int

    def tensors(self) -> dict[str, Shape]:
        counts = (("q", 2 * self.heads), ("k", self.groups), ("v", self.groups))
        return {f"{self.hf}{part}_proj.weight": (count * self.dim, self.hidden) for part, count in counts}

    def pieces(self, layout: Layout) -> list[Piece]:
        out = []
        for (name, shape), view in zip(self.tensors().items(), self._views(self.groups // layout.tp_size), strict=True):
            height = shape[0] // layout.tp_size
            out.append(Piece(name, shape, rows(name, shape, layout.tp * height, (layout.tp + 1) * height), view, split=True))
        return out

    def _views(self, groups: int) -> tuple[View, View, View]:
        each = self.heads // self.groups  # query heads of a kv head

        def grouped(weight: Any) -> Any:
            return weight.view(groups, 2 * each + 2, self.dim, self.hidden)

        return (
            lambda weight: grouped(weight)[:, : 2 * each].unflatten(1, (2, each)).transpose(1, 2),
            lambda weight: grouped(weight)[:, 2 * each],
            lambda weight: grouped(weight)[:, 2 * each + 1],
        )
