"""Which bytes travel in which message: a pure plan from what each trainer rank owns to what each engine worker needs.

A *unit* is one box of one Hugging Face tensor that one trainer rank owns. A *bucket* is a bounded part of the model; a *message* is what one owner puts on the
wire for one bucket, the same for every receiver, or for one receiver under p2p.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from vime.errors import RunError

Box = tuple[tuple[int, int], ...]  # (start, stop) of each dimension
ALIGNMENT = 64  # bytes; a tensor in a message starts on a multiple of it
STAGE = "weight sync"


class PeerGoneError(RunError):
    """The other end of a connection went away: a consequence, whose cause another worker reports."""


@dataclass(frozen=True)
class Unit:
    """A box of the tensor `name` of global shape `shape`, owned by trainer rank `owner`. `float32`: it travels in float32 whatever the engines' dtype is (a
    routing bias: rounding it would change which experts are chosen)."""

    name: str
    shape: tuple[int, ...]
    box: Box
    owner: int
    float32: bool = False

    def itemsize(self, usual: int) -> int:
        """Bytes of an element on the wire, `usual` being those of the engines' dtype."""
        return 4 if self.float32 else usual

    @property
    def extent(self) -> tuple[int, ...]:
        return tuple(stop - start for start, stop in self.box)

    @property
    def numel(self) -> int:
        return math.prod(self.extent)

    @property
    def whole(self) -> bool:
        return self.extent == self.shape

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, stop) for start, stop in self.box)

    @property
    def key(self) -> str:
        """The tensor's name, with the box where it is only a part of it: `model.norm.weight`, `lm_head.weight[0:32,0:96]`."""
        return self.name if self.whole else f"{self.name}[{','.join(f'{start}:{stop}' for start, stop in self.box)}]"


@dataclass(frozen=True)
class Message:
    """What `owner` sends for one bucket."""

    owner: int
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class Bucket:
    """Messages that together complete some tensors (or one split tensor's next rows), in the order receivers take them."""

    messages: tuple[Message, ...]


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts layer 2 before layer 10, so that a layer's tensors lie together."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


def check_coverage(units: Iterable[Unit]) -> dict[str, list[Unit]]:
    """Units by tensor, in natural order. Raises `RunError` when a tensor is not covered exactly once or its shape is in dispute."""
    by_name: dict[str, list[Unit]] = {}
    for unit in units:
        by_name.setdefault(unit.name, []).append(unit)
    for name, parts in by_name.items():
        if len({unit.shape for unit in parts}) > 1:
            raise RunError(STAGE, f"trainer ranks disagree on the shape of {name}: {sorted({unit.shape for unit in parts})}")
        for left, right in combinations(parts, 2):
            if intersection(left.box, right.box) is not None:
                raise RunError(STAGE, f"{left.key} of rank {left.owner} and {right.key} of rank {right.owner} overlap: a tensor would be sent twice")
        covered, total = sum(unit.numel for unit in parts), math.prod(parts[0].shape)
        if covered != total:
            raise RunError(STAGE, f"trainer ranks export {covered} of the {total} elements of {name}: part of the tensor has no owner")
    return {name: by_name[name] for name in sorted(by_name, key=natural)}


def intersection(left: Box, right: Box) -> Box | None:
    """The box both have in common, or None."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return common if all(start < stop for start, stop in common) else None


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def split(unit: Unit, itemsize: int, limit: int) -> list[Unit]:
    """Rows of a unit in pieces of at most `limit` bytes; one row is never cut."""
    rows = unit.extent[0] if unit.extent else 1
    itemsize = unit.itemsize(itemsize)
    if unit.numel * itemsize <= limit or rows == 1:
        return [unit]
    step = max(1, limit // (unit.numel // rows * itemsize))
    first, last = unit.box[0]
    return [replace(unit, box=((start, min(start + step, last)), *unit.box[1:])) for start in range(first, last, step)]


def buckets(units: Iterable[Unit], itemsize: int, limit: int) -> list[Bucket]:
    """Whole tensors gathered into buckets of at most `limit` bytes (a larger tensor travels in several); raises `RunError` as `check_coverage` does."""
    return pack(check_coverage(units).values(), itemsize, limit)


def pack(tensors: Iterable[Sequence[Unit]], itemsize: int, limit: int) -> list[Bucket]:
    """Buckets of at most `limit` bytes, filled in order. `tensors`: the units of one tensor each."""
    result: list[list[Unit]] = []
    size = limit + 1
    for parts in tensors:
        pieces = [piece for unit in parts for piece in split(unit, itemsize, limit)]
        total = sum(aligned(piece.numel * piece.itemsize(itemsize)) for piece in pieces)
        runs = [pieces] if total <= limit else [[piece] for piece in pieces]  # a tensor that fits stays in one bucket
        for run in runs:
            bytes_of_run = sum(aligned(piece.numel * piece.itemsize(itemsize)) for piece in run)
            if size + bytes_of_run > limit:
                result.append([])
                size = 0
            result[-1].extend(run)
            size += bytes_of_run
    return [
        Bucket(tuple(Message(owner, tuple(unit for unit in run if unit.owner == owner)) for owner in sorted({unit.owner for unit in run}))) for run in result
    ]


def route(units: Iterable[Unit], needs: Sequence[Mapping[str, Box]]) -> list[list[list[Unit]]]:
    """Peer-to-peer: for each receiver, the units it needs by tensor, each cut to what it needs of it.

    `needs[i]` maps a tensor's name to the box that receiver i holds of it; a name that is missing is not needed there. Raises `RunError` for a name that
    nobody exports.
    """
    by_name = check_coverage(units)
    for index, need in enumerate(needs):
        unknown = sorted(set(need) - set(by_name))
        if unknown:
            raise RunError(STAGE, f"engine worker {index} needs {unknown[0]}, which no trainer rank exports")
    return [[cut(parts, need[name]) for name, parts in by_name.items() if name in need] for need in needs]


def cut(parts: Sequence[Unit], box: Box) -> list[Unit]:
    """The units of one tensor cut to `box`."""
    common = [(unit, intersection(unit.box, box)) for unit in parts]
    return [replace(unit, box=overlap) for unit, overlap in common if overlap is not None]
