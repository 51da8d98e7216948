"""Readers of curves: one file each, chosen by content.

A reader is a module of this package with a `READER` object (see `base.Reader`). Adding a format is adding one file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from reports.errors import ReportError, UnreadableRun
from reports.model import Note, NoteKind, Run
from reports.readers.base import Reader, Reading
from reports.readers.source import Source

How = Reading | str | None  # a reader's name stands for Reading(format=name)


@cache
def readers() -> dict[str, Reader]:
    """Every reader by name, in order of its `priority` (the more specific format first)."""
    found: list[Reader] = []
    for info in pkgutil.iter_modules(__path__):
        reader = getattr(importlib.import_module(f"{__name__}.{info.name}"), "READER", None)
        if reader is not None:
            found.append(reader)
    return {reader.name: reader for reader in sorted(found, key=lambda reader: reader.priority)}


def read_run(path: Path | str, format: How = None) -> Run:
    """The one run at `path`, a local path or an fsspec URL; `path#name` is one of several in a file.

    Raises ReportError when the path does not exist or holds several runs, UnreadableRun when no reader (or not the forced one) finds a curve in it.
    """
    return one_run(_read(path, format), path)


def one_run(runs: list[Run], path: Path | str) -> Run:
    """Raises ReportError, with their names, for several."""
    if len(runs) > 1:
        raise ReportError(f"{path} holds {len(runs)} runs: take one of them as {path}#NAME, where NAME is {', '.join(repr(run.part) for run in runs[:12])}")
    return runs[0]


def read_or_note(path: Path | str, format: How = None) -> Run:
    """Like `read_run`, but an unreadable file becomes a run without curves whose note says why: a broken run is judged INVALID, not skipped."""
    try:
        return read_run(path, format)
    except UnreadableRun as error:
        return _unreadable(path, error)


def read_runs(paths: Iterable[Path | str], format: How = None) -> list[Run]:
    """Every run at every path; a file of several runs gives them all. Unreadable ones as in `read_or_note`."""
    found: list[Run] = []
    for path in paths:
        try:
            found += _read(path, format)
        except UnreadableRun as error:
            found.append(_unreadable(path, error))
    return found


def _unreadable(path: Path | str, error: UnreadableRun) -> Run:
    return Run(Path(path), "unreadable", np.empty(0, dtype=np.int64), {}, (Note(NoteKind.UNREADABLE, error.why, str(path)),), url=str(path))


def _read(where: Path | str, how: How) -> list[Run]:
    reading = how if isinstance(how, Reading) else Reading(format=how)
    place, part = _split(where)
    source = Source(place)
    if reading.cache is not None and not source.remote:
        from reports.cache import CurveCache

        runs = CurveCache(reading.cache).read(source, reading, lambda: parse(source, reading))
    else:
        runs = parse(source, reading)
    if part is None:
        return runs
    chosen = [run for run in runs if part == run.part or part in run.part.split(",")]
    if len(chosen) != 1:
        raise ReportError(f"{where}: {len(chosen)} runs are called {part!r}; there are {', '.join(repr(run.part) for run in runs[:20])}")
    return chosen


def parse(source: Source, reading: Reading) -> list[Run]:
    """Every run of the file or folder, under our names of the metrics. Raises UnreadableRun where there is no curve."""
    from reports.readers.names import apply

    reader = _forced(reading.format) if reading.format else _sniffed(source)
    runs = reader.read(source, reading)
    if not any(run.curves for run in runs):
        raise UnreadableRun(source.path, "its records hold no number")
    return [apply(replace(run, url=source.url), reading) for run in runs]


def _split(where: Path | str) -> tuple[Path | str, str | None]:
    """A path and the name of a run in it: `file.csv#seed=3`. A path that exists with its # is that path."""
    text = str(where)
    if "#" not in text or ("://" not in text and Path(text).exists()):
        return where, None
    place, _, part = text.rpartition("#")
    return place, part


def _forced(format: str) -> Reader:
    if format not in readers():
        raise ReportError(f"--format {format}: unknown; one of {', '.join(readers())}")
    return readers()[format]


def _sniffed(source: Source) -> Reader:
    if not source.is_dir and not source.head:
        raise UnreadableRun(source.path, "the file is empty (0 bytes)")
    for reader in readers().values():
        if reader.sniff(source):
            return reader
    raise UnreadableRun(source.path, f"holds no curve that a reader knows ({', '.join(readers())})")
