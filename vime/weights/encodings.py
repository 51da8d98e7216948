"""How a unit's bytes are written and read: whole (`full`), or only what changed since a version both sides hold (`delta`).

A message is `header | payload`. The header has 24 bytes a unit: int64 count (−1: the whole unit follows; k ≥ 0: k changed elements follow) and the 16-byte
digest of the unit as the engine must hold it. Elements are compared bit by bit in the engine's dtype, so applying a delta gives the very same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime.errors import RunError
from vime.weights.plan import STAGE, Message, Unit, aligned

if TYPE_CHECKING:
    import torch

Digest = Callable[["torch.Tensor"], str]
Source = Callable[[Unit], "torch.Tensor"]
HEADER_BYTES = 24
WHOLE = -1


@dataclass
class Packed:
    """What a sender wrote: bytes of the message and the digest of each unit by its key."""

    nbytes: int
    digests: dict[str, str]


def header_bytes(message: Message) -> int:
    return aligned(HEADER_BYTES * len(message.units))


def capacity(message: Message, itemsize: int) -> int:
    """Bytes the message takes at most: a delta that would be larger is sent whole."""
    return header_bytes(message) + sum(aligned(unit.numel * unit.itemsize(itemsize)) for unit in message.units)


def wire_dtype(unit: Unit, dtype: torch.dtype) -> torch.dtype:
    """What a unit travels in, `dtype` being the engines'."""
    import torch

    return torch.float32 if unit.float32 else dtype


def payload_bytes(unit: Unit, count: int, itemsize: int) -> int:
    """Bytes of one unit's payload: its elements, or `count` int32 positions and as many elements."""
    itemsize = unit.itemsize(itemsize)
    return aligned(unit.numel * itemsize) if count == WHOLE else aligned(4 * count) + aligned(itemsize * count)


def total_bytes(message: Message, counts: list[int], itemsize: int) -> int:
    return header_bytes(message) + sum(payload_bytes(unit, count, itemsize) for unit, count in zip(message.units, counts, strict=True))


def region(buffer: torch.Tensor, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A typed view into a uint8 buffer."""
    numel = 1
    for extent in shape:
        numel *= extent
    return buffer[offset : offset + numel * dtype.itemsize].view(dtype).view(shape)


def write(
    message: Message,
    source: Source,
    out: torch.Tensor,
    dtype: torch.dtype,
    digest: Digest,
    base: Mapping[str, torch.Tensor] | None = None,
) -> Packed:
    """Pack a message into the uint8 tensor `out`, casting to `dtype` on the way.

    `source(unit)` is the owner's tensor of that unit, any dtype. With `base` (unit key → the unit in `dtype` as receivers hold it) only changes are written.
    """
    import torch

    offset = header_bytes(message)
    records, digests = bytearray(), {}
    for unit in message.units:
        tensor, own = source(unit), wire_dtype(unit, dtype)
        if base is None:
            count, new = WHOLE, region(out, offset, own, unit.extent)
            new.copy_(tensor)
        else:
            new = tensor.to(own).contiguous()
            count = write_changes(unit, new, base[unit.key], out, offset)
        digests[unit.key] = digest(new)
        records += count.to_bytes(8, "little", signed=True) + bytes.fromhex(digests[unit.key])
        offset += payload_bytes(unit, count, dtype.itemsize)
    out[: len(records)] = torch.frombuffer(records, dtype=torch.uint8)
    return Packed(offset, digests)


def write_changes(unit: Unit, new: torch.Tensor, old: torch.Tensor, out: torch.Tensor, offset: int) -> int:
    """Write positions and values of the elements that differ, or the whole unit where that is shorter (or too large for int32 positions); returns the count."""
    import torch

    itemsize = new.dtype.itemsize
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[itemsize]
    flat, before = new.view(-1).view(bits), old.view(-1).view(bits)
    positions = (flat != before).nonzero().view(-1)
    count = len(positions)
    if unit.numel >= 2**31 or payload_bytes(unit, count, itemsize) >= payload_bytes(unit, WHOLE, itemsize):
        region(out, offset, new.dtype, unit.extent).copy_(new)
        return WHOLE
    region(out, offset, torch.int32, (count,)).copy_(positions)
    region(out, offset + aligned(4 * count), bits, (count,)).copy_(flat[positions])
    return count


def read_header(message: Message, buffer: torch.Tensor) -> tuple[list[int], list[str]]:
    """Counts and digests of a message's units."""
    raw = bytes(buffer[: HEADER_BYTES * len(message.units)].cpu().numpy())
    records = [raw[start : start + HEADER_BYTES] for start in range(0, len(raw), HEADER_BYTES)]
    return [int.from_bytes(record[:8], "little", signed=True) for record in records], [record[8:].hex() for record in records]


def read(
    message: Message, buffer: torch.Tensor, dtype: torch.dtype, digest: Digest, base: Mapping[str, torch.Tensor] | None = None
) -> list[tuple[Unit, torch.Tensor, str]]:
    """The units of a message with their digests, each checked against the sender's before anything else is done with it.

    A whole unit is a view into `buffer`; a changed one is a copy of `base[unit.key]` with the changes applied. Raises `RunError` naming the tensor whose
    digest differs.
    """
    counts, expected = read_header(message, buffer)
    offset = header_bytes(message)
    result = []
    for unit, count, wanted in zip(message.units, counts, expected, strict=True):
        own = wire_dtype(unit, dtype)
        tensor = region(buffer, offset, own, unit.extent) if count == WHOLE else apply_changes(unit, count, buffer, offset, own, base)
        found = digest(tensor)
        if found != wanted:
            raise RunError(STAGE, f"{unit.key}: the bytes received (digest {found}) are not those sent ({wanted}); the engine is dirty until a full sync")
        result.append((unit, tensor, found))
        offset += payload_bytes(unit, count, dtype.itemsize)
    return result


def apply_changes(unit: Unit, count: int, buffer: torch.Tensor, offset: int, dtype: torch.dtype, base: Mapping[str, torch.Tensor] | None) -> torch.Tensor:
    """A copy of the base with `count` elements replaced; the base itself is never touched."""
    import torch

    if base is None or unit.key not in base:
        raise RunError(STAGE, f"{unit.key}: a delta arrived, but this engine holds no base to apply it to")
    if not 0 <= count <= unit.numel:
        raise RunError(STAGE, f"{unit.key}: a delta of {count} elements for a tensor of {unit.numel} (a damaged message)")
    tensor = base[unit.key].clone()
    positions = region(buffer, offset, torch.int32, (count,))
    tensor.view(-1)[positions.long()] = region(buffer, offset + aligned(4 * count), dtype, (count,))
    return tensor
