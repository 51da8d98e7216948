"""The kinds of entries a weight table is made of.

A rule says which Hugging Face tensors one Megatron parameter holds, and cuts this rank's pieces. Megatron's own arrangement of a parameter is described by
each class: how many ways it is split, along which axis, and in which order it holds several tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from vime.models.base import Layout, Piece, Slices, padded_vocab, rows, whole

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
View = Callable[["torch.Tensor"], "torch.Tensor"]


class Rule(Protocol):
    """One entry of a table."""

    def tensors(self) -> dict[str, Shape]:
        """The Hugging Face tensors it takes part in, with their global shapes."""

    def pieces(self, layout: Layout) -> list[Piece]:
        """This rank's pieces of them."""


def same(weight: torch.Tensor) -> torch.Tensor:
    return weight


@dataclass(frozen=True)
class Whole:
    """Every tensor-parallel rank holds all of it: norms, routers, the biases of row-parallel linears. The parameter may have another shape of as many
    elements."""

    name: str
    shape: Shape

    def tensors(self) -> dict[str, Shape]:
        return {self.name: self.shape}

    def pieces(self, layout: Layout) -> list[Piece]:
        return [Piece(self.name, self.shape, whole(self.shape), same)]


@dataclass(frozen=True)
class Rows:
    """The first axis is split: weight [out / tp, in] or bias [out / tp] of a column-parallel linear."""

    name: str
    shape: Shape

    def tensors(self) -> dict[str, Shape]:
        return {self.name: self.shape}

    def pieces(self, layout: Layout) -> list[Piece]:
        height = self.shape[0] // layout.tp_size
        return [Piece(self.name, self.shape, rows(self.name, self.shape, layout.tp * height, (layout.tp + 1) * height), same, split=True)]


@dataclass(frozen=True)
class Columns:
    """The second axis is split: weight [out, in / tp] of a row-parallel linear."""

    name: str
    shape: Shape

    def tensors(self) -> dict[str, Shape]:
        return {self.name: self.shape}

    def pieces(self, layout: Layout) -> list[Piece]:
        width = self.shape[1] // layout.tp_size
        return [Piece(self.name, self.shape, (slice(0, self.shape[0]), slice(layout.tp * width, (layout.tp + 1) * width)), same, split=True)]


@dataclass(frozen=True)
class Stack:
    """Several column-parallel tensors of one shape, each split, one after the other on every rank: gate and up of a gated MLP, [2, ffn / tp, hidden]
    flattened."""

    names: tuple[str, ...]
    shape: Shape  # of each

    def tensors(self) -> dict[str, Shape]:
        return dict.fromkeys(self.names, self.shape)

    def pieces(self, layout: Layout) -> list[Piece]:
        height = self.shape[0] // layout.tp_size
        cut = rows(self.names[0], self.shape, layout.tp * height, (layout.tp + 1) * height)
        return [Piece(name, self.shape, cut, self._part(index, height), split=True) for index, name in enumerate(self.names)]

    def _part(self, index: int, height: int) -> View:
        return lambda weight: weight.view(len(self.names), height, *self.shape[1:])[index]


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values of grouped-query attention, weight or bias: [kv heads / tp, Σ heads of a group · dim, …] flattened, each group holding its
    heads of every tensor in turn.

    `parts`: (Hugging Face name, heads of it in one group); every head has `dim` rows. q, k, v of plain attention: (q, heads / kv heads), (k, 1), (v, 1).
    """

    parts: tuple[tuple[str, int], ...]
    groups: int  # kv heads of the model
    dim: int
    rest: Shape  # (hidden,) for a weight, () for a bias

    def tensors(self) -> dict[str, Shape]:
        return {name: (self.groups * count * self.dim, *self.rest) for name, count in self.parts}

    def pieces(self, layout: Layout) -> list[Piece]:
        groups, shapes, first, out = self.groups // layout.tp_size, self.tensors(), 0, []
        for name, count in self.parts:
            height = groups * count * self.dim
            cut = rows(name, shapes[name], layout.tp * height, (layout.tp + 1) * height)
            out.append(Piece(name, shapes[name], cut, self._part(groups, first, count), split=True))
            first += count
        return out

    def _part(self, groups: int, first: int, count: int) -> View:
        per_group = sum(heads for _, heads in self.parts)
        return lambda weight: weight.view(groups, per_group, self.dim, *weight.shape[1:])[:, first : first + count]


@dataclass(frozen=True)
class Vocabulary:
    """Rows of a vocabulary, padded to a multiple of the tensor-parallel size; the last ranks may hold fewer real rows, or none.

    `home`: the pipeline stage that owns it, 0 the first, −1 the last; elsewhere it is a copy. `aliases`: other names under which it is exported.
    """

    name: str
    shape: Shape
    home: int = 0
    aliases: tuple[str, ...] = ()

    def tensors(self) -> dict[str, Shape]:
        return dict.fromkeys((self.name, *self.aliases), self.shape)

    def pieces(self, layout: Layout) -> list[Piece]:
        height = padded_vocab(self.shape[0], layout.tp_size) // layout.tp_size
        start, stop = min(layout.tp * height, self.shape[0]), min((layout.tp + 1) * height, self.shape[0])
        if start == stop:
            return []
        piece = Piece(self.name, self.shape, rows(self.name, self.shape, start, stop), lambda weight: weight[: stop - start], split=True)
        if layout.pp != self.home % layout.pp_size:
            return [replace(piece, copy=True)]
        return [piece, *(replace(piece, hf_name=alias, alias=True) for alias in self.aliases)]


@dataclass(frozen=True)
class OfExpert:
    """A rule of one routed expert: split over the experts' own tensor-parallel ranks."""

    rule: Rule

    def tensors(self) -> dict[str, Shape]:
        return self.rule.tensors()

    def pieces(self, layout: Layout) -> list[Piece]:
        grid = Layout(tp=layout.etp, tp_size=layout.etp_size)
        return [replace(piece, expert=True) for piece in self.rule.pieces(grid)]


@dataclass(frozen=True)
class Slab:
    """One expert's part of a tensor that holds all experts, [experts, …]; `rule` describes the expert's own tensors, laid end to end along `axis` of the
    slab (gate and up), `transposed` where the checkpoint holds them as [in, out]."""

    name: str
    experts: int
    index: int
    rule: Rule
    axis: int = 0  # of the expert's own [out, in] tensors along which they are joined
    transposed: bool = False

    def tensors(self) -> dict[str, Shape]:
        parts = list(self.rule.tensors().values())
        joined = list(parts[0])
        joined[self.axis] = sum(part[self.axis] for part in parts)
        return {self.name: (self.experts, *(reversed(joined) if self.transposed else joined))}

    def pieces(self, layout: Layout) -> list[Piece]:
        ((_, shape),) = self.tensors().items()
        offsets, first = {}, 0
        for name, part in self.rule.tensors().items():
            offsets[name] = first
            first += part[self.axis]
        return [self._moved(piece, shape, offsets[piece.hf_name]) for piece in self.rule.pieces(layout)]

    def _moved(self, piece: Piece, shape: Shape, offset: int) -> Piece:
        cut = list(piece.hf_slice)
        cut[self.axis] = slice(cut[self.axis].start + offset, cut[self.axis].stop + offset)
        slices: Slices = (slice(self.index, self.index + 1), *(reversed(cut) if self.transposed else cut))
        view: Any = (lambda weight: piece.view(weight).t()) if self.transposed else piece.view
        return replace(piece, hf_name=self.name, hf_shape=shape, hf_slice=slices, view=view)
