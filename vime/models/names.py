"""From Megatron's local parameter names to those of the whole model.

A rule is kept under the name the parameter would have in a model of one rank, built of Megatron's local modules. A rank counts its layers and experts from 0,
TransformerEngine joins a norm with the linear after it, and grouped experts share one parameter: all of that is undone here, for every family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from vime.models.base import Layout, Piece, Stored, WeightTable
from vime.models.rules import Rule, Shape, View, same

LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
SEQUENTIAL = re.compile(r"(.+\.mlp\.experts\.)local_experts\.(\d+)\.(.+)")  # SequentialMLP
NUMBERED = re.compile(r"(.+\.mlp\.experts\.linear_fc[12]\.(?:weight|bias))(\d+)")  # TransformerEngine's grouped MLP
GROUPED = re.compile(r"(.+\.mlp\.experts\.)weight([12])")  # Megatron's own grouped MLP
JOINED = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "self_attention.linear_q_up_proj.layer_norm_weight": "self_attention.q_layernorm.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight": "self_attention.kv_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}
JOINED_SUFFIX = re.compile("(" + "|".join(map(re.escape, JOINED)) + ")$")


def table_of(
    rules: Mapping[str, Rule],
    *,
    prefix: str = "",
    experts: int = 0,
    tied_head: bool = False,
    ignored: re.Pattern[str] | None = None,
    aliases: Mapping[str, str] | None = None,
    draft: frozenset[str] = frozenset(),
    float32: frozenset[str] = frozenset(),
    stored: Callable[[str], Stored | None] = lambda name: None,
) -> WeightTable:
    """A table from rules under whole-model names. `prefix` stands before the decoder's names in the module (and in `rules`) of a model with more than a
    decoder. `experts`: routed experts of a layer, over all ranks."""
    shapes: dict[str, Shape] = {}
    for rule in rules.values():
        shapes.update(rule.tensors())

    def find(name: str, layout: Layout) -> list[Piece]:
        out = []
        for whole_name, view in whole_names(name, layout, prefix, experts):
            if whole_name not in rules:
                raise KeyError(f"the weight table has no parameter {name} ({whole_name} in the whole model)")
            out += [_through(view, piece) for piece in rules[whole_name].pieces(layout)]
        return out

    skip = re.compile(rf"rotary_emb\.inv_freq$|{ignored.pattern}" if ignored else r"rotary_emb\.inv_freq$")
    return WeightTable(shapes, find, tied_head, lambda name: bool(skip.search(name)), dict(aliases or {}), draft, float32, stored)


def whole_names(name: str, layout: Layout, prefix: str, experts: int) -> list[tuple[str, View]]:
    """The names a local parameter has in the whole model, each with the view of its part of the parameter."""
    if not name.startswith(prefix):
        return [(name, same)]
    bare = name.removeprefix(prefix)
    if match := LAYER.fullmatch(bare):
        bare = f"decoder.layers.{int(match[1]) + layout.layer_offset}.{match[2]}"
    bare = JOINED_SUFFIX.sub(lambda match: JOINED[match[1]], bare)
    return [(prefix + whole, view) for whole, view in _experts(bare, layout, experts // layout.ep_size)]


def _experts(name: str, layout: Layout, count: int) -> list[tuple[str, View]]:
    first = layout.ep * count
    if match := SEQUENTIAL.fullmatch(name):
        return [(f"{match[1]}{first + int(match[2])}.{match[3]}", same)]
    if match := NUMBERED.fullmatch(name):
        head, _, linear = match[1].rpartition("experts.")
        return [(f"{head}experts.{first + int(match[2])}.{linear}", same)]
    if match := GROUPED.fullmatch(name):
        return [(f"{match[1]}{first + index}.linear_fc{match[2]}.weight", _grouped(int(match[2]), index, count)) for index in range(count)]
    return [(name, same)]


def _grouped(linear: int, index: int, count: int) -> View:
    """weight1 [hidden, experts · 2 ffn] is read as [experts, hidden, 2 ffn], weight2 [experts · ffn, hidden] as [experts, ffn, hidden]; the weight of a linear
    is the transpose."""
    if linear == 1:
        return lambda weight: weight.view(count, weight.shape[0], -1)[index].t()
    return lambda weight: weight.view(count, -1, weight.shape[1])[index].t()


def _through(view: View, piece: Piece) -> Piece:
    return piece if view is same else replace(piece, view=lambda weight: piece.view(view(weight)))
