"""What a reader returns: curves of one run, its provenance, and everything that was found on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from reports.facts import MetricFacts, SyncFacts


def printable(text: str) -> str:
    """The text with each half of a character (from a file name or a JSON escape) written as an escape: it can then be printed and stored."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class NoteKind(StrEnum):
    """Kinds of findings. None of them is repaired in silence; which of them refuse a verdict is decided in `checks`."""

    UNREADABLE = "unreadable"  # no curve could be read at all
    TORN_LINE = "torn line"  # the last line ends in the middle of a record
    BROKEN_LINE = "broken line"  # a line inside the file that is not a record
    GLUED_LINE = "glued line"  # two records on one line, or a torn record with the next one behind it
    RESTART = "restart"  # steps recorded again; the later record wins
    DUPLICATE = "duplicate"  # the same record twice, equal in every metric
    OUT_OF_ORDER = "out of order"  # a step that comes after a later one
    TEXT_VALUE = "text value"  # a metric that is neither a number nor a spelling of one
    NON_FINITE = "non-finite"  # NaN or infinity, kept as such
    MISSING = "missing"  # null, or a file that should be there
    CONFLICT = "conflict"  # sources that contradict each other: two files, two clocks, two runs
    AMBIGUOUS = "ambiguous"  # several source metrics could be the one of ours; none was taken
    ASSUMED = "assumed"  # something the file does not say, such as steps numbered by position
    AGGREGATE = "aggregate"  # values that are means over several runs or steps
    VACUOUS = "vacuous"  # a reference whose values are all zero
    ENCODING = "encoding"  # bytes that are no text in the file's encoding


@dataclass(frozen=True)
class Note:
    """One finding: its kind, plain words, the file and line it is about, and the metric where it is about one."""

    kind: NoteKind
    text: str
    where: str = ""
    metric: str = ""


@dataclass(frozen=True)
class Curve:
    """One metric over the steps that recorded it.

    steps: int64[S], strictly increasing. values: float64[S], NaN or infinite where the source says so.
    A step without the metric has no entry: missing is never a number.
    """

    steps: np.ndarray
    values: np.ndarray

    def at(self, steps: np.ndarray) -> np.ndarray:
        """float64[len(steps)]: values at `steps`. Raises KeyError with the first step that is not recorded."""
        index = np.searchsorted(self.steps, steps)
        clipped = np.minimum(index, len(self.steps) - 1) if len(self.steps) else index
        if len(steps) and (not len(self.steps) or not np.array_equal(self.steps[clipped], steps)):
            known = set(self.steps.tolist())
            raise KeyError(next(s for s in steps.tolist() if s not in known))
        return self.values[clipped] if len(steps) else np.empty(0)

    @property
    def first_bad_step(self) -> int | None:
        """First step whose value is not finite, or None."""
        bad = np.flatnonzero(~np.isfinite(self.values))
        return int(self.steps[bad[0]]) if len(bad) else None


@dataclass(frozen=True)
class Run:
    """One training run as read from disk.

    steps: int64[S] are all steps with a record, whichever metrics it held. `manifest`, `events`, `runner` and `samples` are empty for formats without them.
    """

    path: Path
    format: str
    steps: np.ndarray
    curves: Mapping[str, Curve]
    notes: tuple[Note, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)
    events: Sequence[dict[str, Any]] = ()
    runner: dict[str, Any] = field(default_factory=dict)
    content_hash: str = ""  # of the run this one was slimmed from; computed from the curves where empty
    url: str = ""  # where it was read, as the caller wrote it; empty for a run made in memory
    part: str = ""  # name of this run within a file that holds several
    aliases: dict[str, str] = field(default_factory=dict)  # name in the source -> our name, for every metric that was renamed
    ambiguous: dict[str, tuple[str, ...]] = field(default_factory=dict)  # our name -> source metrics that could be it

    @property
    def labels(self) -> dict[str, Any]:
        labels = self.manifest.get("labels")
        return labels if isinstance(labels, dict) else {}

    @property
    def seed(self) -> int | None:
        seed = self.manifest.get("seed")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @property
    def science_hash(self) -> str | None:
        value = self.labels.get("science_hash")
        return str(value) if value else None

    @property
    def planned_steps(self) -> int | None:
        value = self.manifest.get("planned_steps")
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def name(self) -> str:
        """Short name for people: the seed where one is known, with the folder's or file's name."""
        stem = printable(self.path.name).removesuffix(".jsonl") + (f"#{self.part}" if self.part else "")
        return stem if self.seed is None or f"seed-{self.seed}" in stem or f"seed{self.seed}" in stem else f"{stem} (seed {self.seed})"

    @property
    def sha(self) -> str:
        """sha256 over every step and metric, so equal for equal data whatever the file's layout; of a slimmed run, that of the run it was made from."""
        return self.content_hash or self.data_sha

    @cached_property
    def data_sha(self) -> str:
        """sha256 over every step and metric that is here."""
        digest = hashlib.sha256()
        digest.update(np.ascontiguousarray(self.steps, dtype="<i8").tobytes())
        for name in sorted(self.curves):
            digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
            digest.update(np.ascontiguousarray(self.curves[name].steps, dtype="<i8").tobytes())
            digest.update(np.ascontiguousarray(self.curves[name].values, dtype="<f8").tobytes())
        return digest.hexdigest()

    @property
    def recorded(self) -> list[str]:
        """Names of all metrics, in order."""
        return sorted(self.curves)

    @cached_property
    def facts(self) -> dict[str, MetricFacts]:
        """Few numbers of each metric that a check looks at beside the judged one."""
        from reports.facts import of_curves
        from reports.metrics import KEPT_IN_BASELINES

        return of_curves(self.curves, KEPT_IN_BASELINES)

    @cached_property
    def syncs(self) -> SyncFacts:
        from reports.facts import of_syncs

        return of_syncs(self.events)

    def events_of(self, *kinds: str) -> list[dict[str, Any]]:
        """The events of these kinds, in order."""
        pick = getattr(self.events, "of", None)
        found: list[dict[str, Any]] = pick(kinds) if pick else [event for event in self.events if event.get("event") in kinds]
        return found

    def notes_of(self, *kinds: NoteKind) -> list[Note]:
        return [note for note in self.notes if note.kind in kinds]
