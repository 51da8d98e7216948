"""The few fields of a verdict file that a page of hundreds of cells shows, read from tens of thousands of files and kept, so that each is parsed once.

A kept head belongs to a file's size, times and inode. Where those differ the file is read anew; `content` tells whether it says something else.
The file of heads is safe to delete, and one that is damaged or of another version is as good as none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from matrix.outcome import Outcome
from matrix.status import Judged
from reports.verdict import READABLE

VERSION = 1


class Difference(msgspec.Struct, array_like=True, frozen=True):
    """One statistic, candidates against baseline, as in `verdict.Comparison`."""

    statistic: str
    scale: str
    state: str
    difference: float | str | None = None
    low: float | str | None = None
    high: float | str | None = None
    delta: float | str | None = None


class Head(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A verdict file in brief. A file that cannot be read is INVALID, and its reason says why: it never disappears and never passes."""

    file: str
    outcome: str
    evidence: str
    created: str = ""  # ISO 8601; empty where unknown
    stale: bool = False
    reasons: list[str] = []
    suspects: list[str] = []
    seeds: list[int] = []
    commits: list[str] = []
    dirty: bool = False
    science_hash: str | None = None
    recipe: str | None = None
    n: int = 0
    B: int = 0
    alarm_p: float | None = None
    statistics: list[Difference] = []
    content: str = ""  # hash of the file's bytes
    broken: bool = False

    @property
    def time(self) -> datetime | None:
        """When it was judged; UTC where the file names no zone."""
        if not self.created:
            return None
        time = datetime.fromisoformat(self.created)
        return time if time.tzinfo else time.replace(tzinfo=UTC)

    @property
    def title(self) -> str:
        return f"{self.outcome} (exactness)" if self.evidence == "exactness" and self.outcome == Outcome.PASS else self.outcome

    def judged(self) -> Judged:
        """The same as `matrix.status` reads it."""
        return Judged(Outcome(self.outcome), self.evidence, tuple(self.reasons), tuple(self.seeds), self.time, self.stale, self.science_hash)


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _Origin(msgspec.Struct, frozen=True):
    commit: str | None = None
    dirty: bool | None = None


class _Run(msgspec.Struct, frozen=True):
    seed: int | None = None
    provenance: _Origin = _Origin()


class _Nothing(msgspec.Struct, frozen=True):
    pass


class _Declared(msgspec.Struct, frozen=True):
    science_hash: str | None = None
    recipe: str | None = None


class _Comparison(msgspec.Struct, frozen=True):
    statistic: str
    scale: str
    state: str
    difference: float | str | None = None
    low: float | str | None = None
    high: float | str | None = None
    delta: float | str | None = None


class _File(msgspec.Struct, frozen=True):
    """What is decoded of a verdict file; the rest is skipped without making objects of it."""

    outcome: Outcome
    evidence: str
    created: str
    schema_version: int = READABLE[-1]
    stale: bool = False
    reasons: list[str] = []
    suspects: list[_Named] = []
    declared: _Declared = _Declared()
    alarm_p: float | None = None
    candidates: list[_Run] = []
    baseline: list[_Nothing] = []
    comparisons: list[_Comparison] = []


_DECODER = msgspec.json.Decoder(_File)


def read_head(file: Path) -> Head:
    """Never raises for a file's content."""
    try:
        data = file.read_bytes()
    except OSError as error:
        return _broken(file, "", str(error))
    content = xxhash.xxh3_64_hexdigest(data)
    try:
        found = _DECODER.decode(data)
        datetime.fromisoformat(found.created)
    except (msgspec.MsgspecError, ValueError) as error:
        return _broken(file, content, f"{type(error).__name__}: {str(error)[:120]}")
    if found.schema_version not in READABLE:
        return _broken(file, content, f"schema {found.schema_version}; this version reads {READABLE[0]} to {READABLE[-1]}")
    runs = found.candidates
    return Head(
        file=file.name,
        outcome=str(found.outcome),
        evidence=found.evidence,
        created=found.created,
        stale=found.stale,
        reasons=found.reasons,
        suspects=[suspect.name for suspect in found.suspects],
        seeds=[run.seed for run in runs if run.seed is not None],
        commits=list(dict.fromkeys(run.provenance.commit for run in runs if run.provenance.commit)),
        dirty=any(run.provenance.dirty for run in runs),
        science_hash=found.declared.science_hash,
        recipe=found.declared.recipe,
        n=len(runs),
        B=len(found.baseline),
        alarm_p=found.alarm_p,
        statistics=[Difference(c.statistic, c.scale, c.state, c.difference, c.low, c.high, c.delta) for c in found.comparisons],
        content=content,
    )


def _broken(file: Path, content: str, why: str) -> Head:
    return Head(file.name, str(Outcome.INVALID), "unknown", reasons=[f"{file.name} is not a verdict that can be read ({why})"], content=content, broken=True)


Stat = tuple[int, int, int, int]  # size, mtime in ns, ctime in ns, inode


class _Kept(msgspec.Struct, array_like=True, gc=False):
    stat: Stat
    head: Head


class _Store(msgspec.Struct, array_like=True):
    version: int
    cells: dict[str, list[_Kept]]


class Heads:
    """The heads of a results root. `file`: where they are kept between calls; None: nowhere."""

    def __init__(self, root: Path, file: Path | None = None) -> None:
        self.root, self.file = root, file
        self.read = 0  # files that had to be parsed
        self._kept = _load(file)
        self._now: dict[str, list[_Kept]] = {}

    def of(self, key: str) -> tuple[Head, ...]:
        """Heads of <root>/<key>/verdicts/*.json, in the order of their names, which begin with the time."""
        kept = {entry.head.file: entry for entry in self._kept.get(key, ())}
        entries = []
        for name, stat in listed(self.root / key / "verdicts"):
            entry = kept.get(name)
            if entry is None or entry.stat != stat:
                entry = _Kept(stat, read_head(self.root / key / "verdicts" / name))
                self.read += 1
            entries.append(entry)
        if entries:
            self._now[key] = self._kept[key] = entries
        return tuple(entry.head for entry in entries)

    def fill(self, keys: Sequence[str], processes: int) -> None:
        """Parse what is not known of many cells, in several processes where there is much of it."""
        missing = [(key, names) for key in keys if (names := self._missing(key))]
        if sum(len(names) for _, names in missing) < PARALLEL_FROM or processes < 2:
            return
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(processes) as pool:
            work = [(str(self.root / key / "verdicts"), key, names) for key, names in missing]
            for key, found in pool.imap_unordered(_parse, work, chunksize=4):
                new = {entry.head.file: entry for entry in found}
                self.read += len(new)
                self._kept[key] = [*new.values(), *(entry for entry in self._kept.get(key, ()) if entry.head.file not in new)]

    def _missing(self, key: str) -> list[tuple[str, Stat]]:
        kept = {entry.head.file: entry.stat for entry in self._kept.get(key, ())}
        return [(name, stat) for name, stat in listed(self.root / key / "verdicts") if kept.get(name) != stat]

    def save(self) -> None:
        """Keep the heads of what was asked for."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        partial.write_bytes(msgspec.msgpack.encode(_Store(VERSION, self._now)))
        partial.replace(self.file)


PARALLEL_FROM = 200


def _parse(work: tuple[str, str, list[tuple[str, Stat]]]) -> tuple[str, list[_Kept]]:
    folder, key, names = work
    return key, [_Kept(stat, read_head(Path(folder) / name)) for name, stat in names]


def listed(folder: Path) -> list[tuple[str, Stat]]:
    """(name, stat) of the verdict files of a folder, sorted; empty for a folder that is not there. Names that begin with a dot are being written."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".json") and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((name, (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)) for name, info in found)


def _load(file: Path | None) -> dict[str, list[_Kept]]:
    if file is None:
        return {}
    try:
        store = msgspec.msgpack.decode(file.read_bytes(), type=_Store)
    except (OSError, msgspec.MsgspecError):
        return {}
    return store.cells if store.version == VERSION else {}


def number(value: float | str | None) -> float | None:
    """A verdict's number: not-a-number and infinities are written as text, and None stands for what is not there."""
    return float(value) if value is not None else None


def as_data(statistics: Iterable[Difference]) -> list[Mapping[str, Any]]:
    """For JSON: None where a number is not finite."""
    return [msgspec.structs.asdict(statistic) for statistic in statistics]
