"""Records of TensorBoard event files: framing with masked CRC-32C, and of the protocol buffers the few fields that carry scalars.

Format: tensorflow/core/lib/io/record_writer.h and tensorflow/core/{util/event,framework/summary,framework/tensor}.proto. Written here because TensorBoard's own
loader takes half a second to import, brings gRPC and protobuf along, and computes the check sums in Python as well.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

LARGEST_RECORD = 1 << 28
_MASK_DELTA = 0xA282EAD8
_FLOAT, _DOUBLE, _INT32, _INT64 = 1, 2, 3, 9  # DataType of a TensorProto
_SCALARS = {_FLOAT: "<f", _DOUBLE: "<d", _INT32: "<i", _INT64: "<q"}


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)  # the reversed Castagnoli polynomial
        table.append(byte)
    return table


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """CRC-32C rotated by 15 bits plus a constant, as the record format stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


class BrokenRecord(ValueError):
    """A record whose check sum does not hold, or that ends early."""


def records(file: IO[bytes]) -> Iterator[bytes]:
    """The payloads in order. Raises BrokenRecord at the first that is cut or damaged: what follows it has no known place."""
    while head := file.read(12):
        if len(head) < 12:
            raise BrokenRecord("ends in the middle of a record")
        (length, crc) = struct.unpack("<QI", head)
        if masked_crc(head[:8]) != crc or length > LARGEST_RECORD:
            raise BrokenRecord("the length of a record does not match its check sum")
        body = file.read(length + 4)
        if len(body) < length + 4:
            raise BrokenRecord("ends in the middle of a record")
        payload = body[:-4]
        if masked_crc(payload) != struct.unpack("<I", body[-4:])[0]:
            raise BrokenRecord("a record does not match its check sum")
        yield payload


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protocol buffer: varints as int, everything else as its bytes. Raises BrokenRecord."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value: int | bytes
            value, at = _varint(message, at)
        else:
            if kind == 2:
                size, at = _varint(message, at)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:
                raise BrokenRecord(f"a field of wire type {kind}")
            value, at = message[at : at + size], at + size
            if at > end:
                raise BrokenRecord("a field reaches past its message")
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise BrokenRecord("a number without an end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def scalars(event: bytes) -> tuple[float, int, list[tuple[str, float]]]:
    """(wall time in s, step, [(tag, value)]) of an Event. Histograms, images, texts and graphs carry no scalar."""
    time, step, found = 0.0, 0, []
    for number, value in fields(event):
        if number == 1 and isinstance(value, bytes):
            (time,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            found += [item for inner, item_bytes in fields(value) if inner == 1 and isinstance(item_bytes, bytes) and (item := _summary_value(item_bytes))]
    return time, step, found


def _summary_value(message: bytes) -> tuple[str, float] | None:
    tag, scalar = "", None
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes):
            (scalar,) = struct.unpack("<f", value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _tensor_scalar(value)
    return (tag, scalar) if tag and scalar is not None else None


def _tensor_scalar(message: bytes) -> float | None:
    """The value of a tensor of one number: in tensor_content, or in the packed list of its type; None for other tensors."""
    parts = dict(fields(message))
    kind = parts.get(1)
    layout = _SCALARS.get(kind) if isinstance(kind, int) else None
    if layout is None:
        return None
    for number in (4, 5, 6):  # tensor_content, float_val, double_val
        raw = parts.get(number)
        size = struct.calcsize(layout)
        if isinstance(raw, bytes) and len(raw) == size and (number == 4 or (number, kind) in ((5, _FLOAT), (6, _DOUBLE))):
            return float(struct.unpack(layout, raw)[0])
    return None
