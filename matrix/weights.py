"""The content hash of a Hugging Face directory's weights, read without torch: the same for the same tensors however they are spread over files."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a safetensors file: its name, dtype, shape, and where its bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int


def tensors(directory: Path) -> list[TensorEntry]:
    """The tensors of every `*.safetensors` file in `directory`, by name. Raises ValueError when there is none, a header is broken, or a name comes twice."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{directory} holds no *.safetensors file")
    entries = [entry for file in files for entry in _entries(file)]
    names = [entry.name for entry in entries]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise ValueError(f"{directory} holds {double[0]} in more than one file")
    return sorted(entries, key=lambda entry: entry.name)


def _entries(file: Path) -> Iterator[TensorEntry]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = struct.unpack("<Q", stream.read(8))[0] if size >= 8 else size
        if length > size - 8:
            raise ValueError(f"{file} is not a whole safetensors file (header of {length} bytes in {size})")
        header = json.loads(stream.read(length))
    base = 8 + length
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            if base + end > size:
                raise ValueError(f"{file} is cut off inside {name}")
            yield TensorEntry(name, entry["dtype"], tuple(entry["shape"]), file, base + start, base + end)


def fingerprint(directory: Path) -> str:
    """SHA-256 over every tensor's name, dtype, shape and bytes, in order of names. Raises ValueError as `tensors` does."""
    digest = hashlib.sha256()
    for entry in tensors(directory):
        digest.update(f"{entry.name}\0{entry.dtype}\0{entry.shape}\0".encode())
        with entry.file.open("rb") as stream:
            stream.seek(entry.start)
            left = entry.end - entry.start
            while left:
                chunk = stream.read(min(CHUNK, left))
                digest.update(chunk)
                left -= len(chunk)
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
