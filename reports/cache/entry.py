"""The bytes of a cache entry: a checked header, then the arrays, so that a run of thousands of values is back in a tenth of a millisecond.

b"vimecurv" | uint64 size of the header | header (msgpack) | zeros to a multiple of 8 | arrays and event blobs | xxh3_64 of all before
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, overload

import msgspec
import numpy as np
import xxhash

from reports.facts import MetricFacts, SyncFacts
from reports.model import Curve, Note, NoteKind, Run

MAGIC = b"vimecurv"
MANY = "weight_sync"  # the event that happens at every step
SIZE = struct.Struct("<Q")


Signature = list[tuple[str, int, int, int, int]]  # (path, size, mtime in ns, ctime in ns, inode)


@dataclass(frozen=True)
class Entry:
    """signature, content: which files it was made from (see `CurveCache`)."""

    signature: Signature
    content: str
    runs: list[Run]


class Events(Sequence[dict[str, Any]]):
    """A run's events, decoded when first looked at. There is one a step of weight syncs and few others, and a verdict looks at the others (`of`)."""

    def __init__(self, blob: bytes | memoryview, others: list[dict[str, Any]]) -> None:
        self._blob, self._others = blob, others
        self._items: list[dict[str, Any]] | None = None

    def of(self, kinds: Sequence[str]) -> list[dict[str, Any]]:
        """Those of the given kinds, in order."""
        return [event for event in (self._all() if MANY in kinds else self._others) if event.get("event") in kinds]

    def _all(self) -> list[dict[str, Any]]:
        if self._items is None:
            self._items = msgspec.msgpack.decode(self._blob)
        return self._items

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, at: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._all()[at]


class Curves(Mapping[str, Curve]):
    """A run's curves, made when first looked at: judging reads one metric of all and few of the candidates', whatever else was recorded.

    Metrics on the same steps share one array of them, so that comparing their steps costs nothing.
    """

    def __init__(self, data: bytes, body: int, head: list[tuple[str, int, int, int]], steps: tuple[int, int, np.ndarray]) -> None:
        self._data, self._body = data, body
        self._places = {name: (steps, values, count) for name, steps, values, count in head}
        self._made: dict[str, Curve] = {}
        self._steps = {steps[:2]: steps[2]}

    def __getitem__(self, name: str) -> Curve:
        curve = self._made.get(name)
        if curve is None:
            steps_at, values_at, count = self._places[name]
            steps = self._steps.get((steps_at, count))
            if steps is None:
                steps = self._steps[steps_at, count] = np.frombuffer(self._data, "<i8", count, self._body + steps_at)
            curve = self._made[name] = Curve(steps, np.frombuffer(self._data, "<f8", count, self._body + values_at))
        return curve

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class _Body:
    """Arrays one behind the other; equal ones (the steps of most metrics) once."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self._known: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        """Where the bytes begin, counted in the body."""
        if data not in self._known:
            self._known[data] = self.size
            self.parts.append(data + b"\0" * (-len(data) % 8))
            self.size += len(self.parts[-1])
        return self._known[data]


def encode(entry: Entry) -> bytes:
    body = _Body()
    header = {
        "signature": [list(item) for item in entry.signature],
        "content": entry.content,
        "runs": [_run(run, body) for run in entry.runs],
    }
    packed = msgspec.msgpack.encode(header)
    start = MAGIC + SIZE.pack(len(packed)) + packed
    data = start + b"\0" * (-len(start) % 8) + b"".join(body.parts)
    return data + SIZE.pack(xxhash.xxh3_64_intdigest(data))


def decode(data: bytes) -> Entry | None:
    """The entry, or None for bytes that are not a whole one."""
    view = memoryview(data)
    if len(data) < len(MAGIC) + 2 * SIZE.size or data[: len(MAGIC)] != MAGIC:
        return None
    if xxhash.xxh3_64_intdigest(view[: -SIZE.size]) != SIZE.unpack(view[-SIZE.size :])[0]:
        return None
    (size,) = SIZE.unpack_from(data, len(MAGIC))
    begin = len(MAGIC) + SIZE.size
    header = msgspec.msgpack.decode(view[begin : begin + size])
    body = begin + size + (-(begin + size) % 8)
    signature = [(str(item[0]), *(int(number) for number in item[1:])) for item in header["signature"]]
    return Entry(signature, header["content"], [_read(run, data, body) for run in header["runs"]])  # type: ignore[arg-type]


def _run(run: Run, body: _Body) -> dict[str, Any]:
    events = msgspec.msgpack.encode(list(run.events))
    return {
        "path": str(run.path),
        "format": run.format,
        "url": run.url,
        "part": run.part,
        "steps": [body.add(np.ascontiguousarray(run.steps, dtype="<i8").tobytes()), len(run.steps)],
        "curves": [
            [
                name,
                body.add(np.ascontiguousarray(curve.steps, dtype="<i8").tobytes()),
                body.add(np.ascontiguousarray(curve.values, dtype="<f8").tobytes()),
                len(curve.steps),
            ]
            for name, curve in run.curves.items()
        ],
        "notes": [[str(note.kind), note.text, note.where, note.metric] for note in run.notes],
        "manifest": run.manifest,
        "runner": run.runner,
        "events": [body.add(events), len(events)],
        "others": [event for event in run.events if event.get("event") != MANY],
        "content_hash": run.content_hash,
        "aliases": run.aliases,
        "ambiguous": {name: list(sources) for name, sources in run.ambiguous.items()},
        "data_sha": run.data_sha,
        "facts": {name: astuple(fact) for name, fact in run.facts.items()},
        "syncs": dict(run.syncs),
    }


def _read(head: dict[str, Any], data: bytes, body: int) -> Run:
    steps_at, count = head["steps"]
    at, size = head["events"]
    steps = np.frombuffer(data, "<i8", count, body + steps_at)
    run = Run(
        Path(head["path"]),
        head["format"],
        steps,
        Curves(data, body, head["curves"], (steps_at, count, steps)),
        tuple(Note(NoteKind(kind), text, where, metric) for kind, text, where, metric in head["notes"]),
        head["manifest"],
        Events(memoryview(data)[body + at : body + at + size], head["others"]),
        head["runner"],
        head["content_hash"],
        url=head["url"],
        part=head["part"],
        aliases=head["aliases"],
        ambiguous={name: tuple(sources) for name, sources in head["ambiguous"].items()},
    )
    # What a run computes of itself and keeps (cached properties): computed when the entry was made.
    run.__dict__["data_sha"] = head["data_sha"]
    run.__dict__["facts"] = {name: MetricFacts(*fact) for name, fact in head["facts"].items()}
    run.__dict__["syncs"] = SyncFacts.model_construct(**head["syncs"])
    return run
