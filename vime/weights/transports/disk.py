"""Versions as directories of safetensors files on a file system that both sides see: `v00000012/rank-3-part-0.safetensors …` and, last of all, `complete.json`.

A version without its marker does not exist. Whole tensors keep their Hugging Face names, so a full version of an unsharded trainer is an ordinary safetensors
checkpoint; a part of a tensor is named with its box, a delta with `.positions` and `.values`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vime.errors import RunError, UserError
from vime.weights.encodings import WHOLE, capacity, header_bytes, payload_bytes, read_header, region, wire_dtype
from vime.weights.plan import STAGE, Message, aligned

if TYPE_CHECKING:
    import torch

    from vime.platforms.base import Platform
    from vime.weights.connection import Connection

MARKER = "complete.json"
KEEP = 2  # versions that stay on disk


class Sender:
    """The owner's end: one file a message."""

    def __init__(self, connection: Connection, owner: int, platform: Platform):
        import torch

        self.connection, self.owner = connection, owner
        self.dtype = getattr(torch, connection.dtype)
        self.bytes = torch.empty(max(capacity(message, self.dtype.itemsize) for _, _, message in connection.outgoing(owner)), dtype=torch.uint8)

    def open(self) -> None:
        return None

    def connect(self, connection: Connection) -> None:
        return None

    def start(self, version: int, base_version: int | None) -> None:
        self.folder = folder_of(self.connection.directory, version)
        self.part = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / MARKER).unlink(missing_ok=True)  # of an earlier attempt: what follows must not look complete before it is
        except OSError as error:
            raise UserError(
                f"weights.disk_path: cannot create {self.folder}: {error.strerror}. Give a directory that trainers and engines may write."
            ) from error

    def buffer(self, message: Message) -> torch.Tensor:
        return self.bytes

    def put(self, message: Message, nbytes: int, receiver: int | None) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        target = self.folder / file_name(self.owner, self.part)
        temporary = target.with_suffix(".tmp")
        try:
            save_file(
                named_tensors(message, self.bytes, self.dtype),
                temporary,
                metadata={"format": "pt", "message": self.bytes[: header_bytes(message)].numpy().tobytes().hex()},
            )
            flush(temporary)
        except (OSError, SafetensorError) as error:
            temporary.unlink(missing_ok=True)
            raise RunError(STAGE, f"cannot write {target}: {error}; free space there, or set weights.disk_path to another directory") from error
        temporary.rename(target)
        self.part += 1

    def close(self) -> None:
        return None


class Receiver:
    """The engine worker's end."""

    def __init__(self, connection: Connection, receiver: int, platform: Platform):
        import torch

        self.connection = connection
        self.dtype = getattr(torch, connection.dtype)

    def connect(self) -> None:
        return None

    def start(self, version: int, base_version: int | None) -> None:
        """Raises `RunError` unless exactly this version, made against exactly this base, is complete on disk."""
        self.folder, self.parts = folder_of(self.connection.directory, version), dict.fromkeys(self.connection.owners, 0)
        found = wait_for_marker(self.folder / MARKER, self.connection.timeout_s)
        if found["version"] != version or found["base_version"] != base_version:
            raise RunError(
                STAGE, f"{self.folder} holds version {found['version']} against base {found['base_version']}, not version {version} against {base_version}"
            )

    def get(self, message: Message) -> torch.Tensor:
        import torch
        from safetensors import safe_open

        path = self.folder / file_name(message.owner, self.parts[message.owner])
        self.parts[message.owner] += 1
        with safe_open(path, framework="pt") as file:
            header = torch.frombuffer(bytearray.fromhex(file.metadata()["message"]), dtype=torch.uint8)
            counts, _ = read_header(message, header)
            sizes = [payload_bytes(unit, count, self.dtype.itemsize) for unit, count in zip(message.units, counts, strict=True)]
            buffer = torch.empty(header_bytes(message) + sum(sizes), dtype=torch.uint8)
            buffer[: len(header)] = header
            for name, view in named_tensors(message, buffer, self.dtype).items():
                view.copy_(file.get_tensor(name))
        return buffer

    def release(self, message: Message) -> None:
        return None

    def close(self) -> None:
        return None


def named_tensors(message: Message, buffer: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Views into a message's buffer under the names they have in its file."""
    import torch

    counts, _ = read_header(message, buffer)
    offset, result = header_bytes(message), {}
    for unit, count in zip(message.units, counts, strict=True):
        own = wire_dtype(unit, dtype)
        if count == WHOLE:
            result[unit.key] = region(buffer, offset, own, unit.extent)
        else:
            result[f"{unit.key}.positions"] = region(buffer, offset, torch.int32, (count,))
            result[f"{unit.key}.values"] = region(buffer, offset + aligned(4 * count), own, (count,))
        offset += payload_bytes(unit, count, dtype.itemsize)
    return result


def mark_complete(directory: str, version: int, base_version: int | None, digests: Mapping[str, str]) -> None:
    """Declare a version whole, durably, once every owner wrote its files; then drop versions that no engine needs any more."""
    folder = folder_of(directory, version)
    temporary = folder / "complete.tmp"
    temporary.write_text(json.dumps({"version": version, "base_version": base_version, "digests": dict(digests)}))
    flush(temporary)
    temporary.rename(folder / MARKER)
    older = sorted(path for path in folder.parent.glob("v*") if path < folder)
    for path in older[: max(0, len(older) + 1 - KEEP)]:
        remove(path)


def remove(folder: Path) -> None:
    """The marker first: a half-removed version must not look complete."""
    (folder / MARKER).unlink(missing_ok=True)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def wait_for_marker(path: Path, timeout_s: float) -> dict:
    """The marker appears at once on a local disk; network file systems may show it late."""
    until = time.monotonic() + timeout_s
    while not path.is_file():
        if time.monotonic() > until:
            raise RunError(STAGE, f"no complete version in {path.parent} within {timeout_s:g} s (weights.timeout_s)")
        time.sleep(0.05)
    return json.loads(path.read_text())


def folder_of(directory: str | None, version: int) -> Path:
    if directory is None:
        raise UserError("weights.disk_path: transport disk needs a directory that trainers and engines share. Set it.")
    return Path(directory) / f"v{version:08d}"


def file_name(owner: int, part: int) -> str:
    return f"rank-{owner}-part-{part}.safetensors"


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
