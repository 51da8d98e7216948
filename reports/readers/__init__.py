"""Readers of curves: one file each, chosen by content.

A reader is a module of this package with a `READER` object (see `base.Reader`). Adding a format is adding one file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from reports.errors import ReportError, UnreadableRun
from reports.model import Note, NoteKind, Run
from reports.readers.base import HEAD_BYTES, Reader


@cache
def readers() -> dict[str, Reader]:
    """Every reader by name, in order of its `priority` (the more specific format first)."""
    found: list[Reader] = []
    for info in pkgutil.iter_modules(__path__):
        reader = getattr(importlib.import_module(f"{__name__}.{info.name}"), "READER", None)
        if reader is not None:
            found.append(reader)
    return {reader.name: reader for reader in sorted(found, key=lambda reader: reader.priority)}


def read_run(path: Path | str, format: str | None = None) -> Run:
    """The run at `path`. Raises ReportError when the path does not exist, UnreadableRun when no reader (or not the forced one) finds a curve in it."""
    path = Path(path)
    if not path.exists():
        raise ReportError(f"{path}: no such file or directory")
    if format is not None:
        if format not in readers():
            raise ReportError(f"--format {format}: unknown; one of {', '.join(readers())}")
        return readers()[format].read(path)
    return _sniffed(path).read(path)


def read_or_note(path: Path | str, format: str | None = None) -> Run:
    """Like `read_run`, but an unreadable file becomes a run without curves whose note says why: a broken run is judged INVALID, not skipped."""
    try:
        return read_run(path, format)
    except UnreadableRun as error:
        return Run(Path(path), "unreadable", np.empty(0, dtype=np.int64), {}, (Note(NoteKind.UNREADABLE, error.why, str(path)),))


def read_runs(paths: Iterable[Path | str], format: str | None = None) -> list[Run]:
    return [read_or_note(path, format) for path in paths]


def _sniffed(path: Path) -> Reader:
    head = b"" if path.is_dir() else _head(path)
    if not path.is_dir() and not head:
        raise UnreadableRun(path, "the file is empty (0 bytes)")
    for reader in readers().values():
        if reader.sniff(path, head):
            return reader
    raise UnreadableRun(path, f"holds no curve that a reader knows ({', '.join(readers())})")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
