"""Qwen3-VL: Qwen3 with a vision tower whose features also enter the first layers (deepstack), and interleaved M-RoPE; dense, or with routed experts."""

from __future__ import annotations

from typing import Any

from vime.models.base import HfConfig, Stored, text_config
from vime.models.decoder import Decoder, decoder_rules, layer_rules, router_rules
from vime.models.qwen3 import experts, facts
from vime.models.rope import read_rope
from vime.models.rules import Columns, OfExpert, Rule, Slab, Stack
from vime.models.vision_family import VisionFamily

THETA = 500000.0  # the rotary base, unless config.json says otherwise
PREFIX = "model.language_model."


class Qwen3VL(VisionFamily):
    """Hugging Face's Qwen3VLForConditionalGeneration."""

    name = "qwen3-vl"
    title = "Qwen3-VL"
    model_types = ("qwen3_vl",)

    def decoder(self, hf_config: HfConfig) -> Decoder:
        return Decoder(**text_facts(hf_config, self.name))


class Qwen3VLMoe(VisionFamily):
    """Hugging Face's Qwen3VLMoeForConditionalGeneration. A layer's experts are two tensors, held as [experts, in, out]."""

    name = "qwen3-vl-moe"
    title = "Qwen3-VL MoE"
    model_types = ("qwen3_vl_moe",)
    has_experts = True

    def decoder(self, hf_config: HfConfig) -> Decoder:
        text = {**text_config(hf_config), "norm_topk_prob": True}  # its router always normalises
        text.setdefault("num_experts", text.get("num_local_experts"))  # as transformers 5 writes it
        return Decoder(**text_facts(hf_config, self.name), **experts(text))

    def rules(self, decoder: Decoder, *, mtp: bool) -> dict[str, Rule]:
        return decoder_rules(decoder, mtp=False, layer=slab_layer)

    def stored(self, decoder: Decoder, name: str) -> Stored | None:
        """transformers 5 writes a model that it has not loaded as [experts, out, in]. (Of a model whose two axes are equal it could not be told.)"""
        routed = decoder.experts
        assert routed is not None
        shapes = {"gate_up_proj": (routed.count, 2 * routed.ffn, decoder.hidden), "down_proj": (routed.count, decoder.hidden, routed.ffn)}
        shape = shapes.get(name.rpartition(".mlp.experts.")[2])
        if shape is None or shape[1] == shape[2]:
            return None
        return Stored(name, shape, tuple(slice(0, size) for size in shape), turned=True)


def text_facts(hf_config: HfConfig, family: str) -> dict[str, Any]:
    return facts(hf_config, family) | {"prefix": PREFIX, "rope": read_rope(hf_config, theta=THETA)}


def slab_layer(decoder: Decoder, index: int, hf: str) -> dict[str, Rule]:
    """As `layer_rules`, with all experts of a layer in one tensor each for gate and up, and for down."""
    if not decoder.is_sparse(index):
        return layer_rules(decoder, index, hf)
    routed = decoder.experts
    assert routed is not None
    rules: dict[str, Rule] = {name: rule for name, rule in layer_rules(decoder, index, hf).items() if not name.startswith("mlp.")}
    rules |= router_rules(decoder, hf)
    shape, base = (routed.ffn, decoder.hidden), f"{hf}mlp.experts."
    for number in range(routed.count):
        fused: dict[str, tuple[str, Rule]] = {"fc1": ("gate_up_proj", Stack(("gate", "up"), shape)), "fc2": ("down_proj", Columns("down", shape[::-1]))}
        for linear, (name, rule) in fused.items():
            slab = Slab(base + name, routed.count, number, rule, transposed=True)
            rules[f"mlp.experts.{number}.linear_{linear}.weight"] = OfExpert(slab)
    return rules
