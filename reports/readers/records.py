"""From records of {step, metrics} to curves: what wins, what is dropped, and what is said about it."""

from __future__ import annotations

import json
import math
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from reports.errors import UnreadableRun
from reports.model import Curve, Note, NoteKind
from reports.readers.base import as_number
from reports.readers.json_text import json_value, printed
from reports.readers.notes import Notes
from reports.readers.source import Source

_DECODER = json.JSONDecoder()
_FAST = msgspec.json.Decoder()
_RECORD_START = re.compile(r'\{"(?:_?step|global_step|iteration)"')
EPOCH = 1e8  # seconds: a clock beyond it counts from 1970 (a training of three years is none), one below it may begin anew with every process
CLOCK_SLACK = 60.0  # seconds by which two hosts' clocks may differ
MOST_RESTARTS = 10  # more than this, and more than one in five steps, are two writers in one file and no restarts


def json_lines(source: Source, notes: Notes) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every JSON object in the file. Torn, broken and glued lines are noted; whole objects in them are kept."""
    for number, text, ended in source.lines(notes):
        text = text.strip() if number > 1 else text.strip().lstrip("\ufeff")
        if not text:
            continue
        try:
            found = _FAST.decode(text)  # five times as fast as json, which is left the lines with NaN and the broken ones
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
            yield from ((number, item) for item in _objects(text, f"{source.name}:{number}", ended, notes))
            continue
        if isinstance(found, dict):
            yield number, found
        else:
            notes.add(NoteKind.BROKEN_LINE, "not an object with a step", f"{source.name}:{number}")


def _objects(text: str, where: str, ended: bool, notes: Notes) -> list[dict[str, Any]]:
    try:
        items = [json_value(text)]
    except (ValueError, RecursionError):
        items = _salvage(text, where, ended, notes)
    objects = [item for item in items if isinstance(item, dict)]
    if len(objects) < len(items):
        notes.add(NoteKind.BROKEN_LINE, "not an object with a step", where)
    return objects


def _salvage(text: str, where: str, ended: bool, notes: Notes) -> list[Any]:
    """Whole objects in a line that is not one: glued records, or a torn record with the next one written behind it."""
    items, rest = _decode_from(text)
    if rest:
        start = max((match.start() for match in _RECORD_START.finditer(rest)), default=0)
        if not _RECORD_START.match(rest) or rest[:start].rstrip()[-1:] in ("[", ",", ":"):
            start = 0  # no torn record with a whole one behind it, but something inside another object
        behind, left = _decode_from(rest[start:]) if start > 0 else ([], rest)
        items += behind if not left else []
        kind = NoteKind.BROKEN_LINE if ended or (behind and not left) else NoteKind.TORN_LINE
        notes.add(kind, f"{len(rest)} characters are not a record: {rest[:40]!r}", where)
    if items:
        notes.add(NoteKind.GLUED_LINE, f"{len(items)} whole record(s) kept from a damaged line", where)
    return items


def _decode_from(text: str) -> tuple[list[Any], str]:
    items: list[Any] = []
    while text:
        try:
            item, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            break
        items.append(printed(item))
        text = text[end:].lstrip()
    return items, text


class _Column:
    """One metric while it is read: steps increasing. 16 bytes a value."""

    __slots__ = ("add_step", "add_value", "steps", "values")

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")
        self.add_step: Callable[[int], None] = self.steps.append
        self.add_value: Callable[[float], None] = self.values.append

    def get(self, step: int) -> float | None:
        at = bisect_left(self.steps, step)
        return self.values[at] if at < len(self.steps) and self.steps[at] == step else None

    def put(self, step: int, value: float) -> None:
        at = bisect_left(self.steps, step)
        self.steps.insert(at, step)
        self.values.insert(at, value)

    def cut(self, step: int) -> None:
        at = bisect_left(self.steps, step)
        del self.steps[at:], self.values[at:]


class StepTable:
    """Records by step. A record of a step that is there already, with other values, is a restart: it and what follows replace the abandoned steps.

    Raises UnreadableRun where the file cannot be one run: restarts at every turn (two writers), or a later line that was written earlier.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name = path, name or path.name
        self.notes = Notes()
        self._columns: dict[str, _Column] = {}
        self._steps, self._times = array("q"), array("d")
        self._highest = -1
        self._duplicates = self._restarts = 0
        self._text: Counter[str] = Counter()
        self._null: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, metrics: Mapping[str, Any], line: int, time: float | None = None) -> None:
        """`time`: when the record was written, in any unit; it decides nothing, but a conflict against it is refused."""
        if step <= self._highest:
            self._add_known(step, metrics, line, time)
            return
        if time is not None and self._times and time < self._times[-1]:
            self._earlier(step, time, line)
        self._highest = step
        self._steps.append(step)
        self._times.append(math.nan if time is None else time)
        columns = self._columns
        for name, value in metrics.items():
            if type(value) is not float:
                if type(value) is dict:
                    self._add_known(step, {f"{name}/{key}": inner for key, inner in value.items()}, line, time)
                    continue
                number = self._number(name, value)
                if number is None:
                    continue
                value = number
            column = columns.get(name)
            if column is None:
                column = columns[name] = _Column()
            if column.steps and column.steps[-1] == step:
                self._add_known(step, {name: value}, line, time)  # a nested name that flattens to the same
                continue
            column.add_step(step)
            column.add_value(value)

    def _earlier(self, step: int, time: float, line: int) -> None:
        """A later step that was written earlier: the join of two runs where both clocks count from 1970, else perhaps a process with a new clock."""
        before = self._times[-1]
        unit = 1000.0 ** max(int(math.log10(time / EPOCH) // 3), 0) if time > EPOCH else 1.0  # seconds, milliseconds, microseconds or nanoseconds
        if min(time, before) > EPOCH and (before - time) / unit > CLOCK_SLACK:
            apart = (before - time) / unit
            raise UnreadableRun(self.path, f"line {line}: step {step} was written {apart:.0f} s before step {self._steps[-1]}: two runs in one file")
        words = f"step {step} bears an earlier time than step {self._steps[-1]}: a clock that began anew, or another run"
        self.notes.add(NoteKind.CONFLICT, words, f"{self.name}:{line}")

    def _number(self, name: str, value: Any) -> float | None:
        number = as_number(value)
        if number is None:
            (self._null if value is None or value == "" else self._text)[name] += 1
        return number

    def _numbers(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        row: dict[str, float] = {}
        for name, value in metrics.items():
            if isinstance(value, dict):
                row |= self._numbers({f"{name}/{key}": inner for key, inner in value.items()})
            elif (number := self._number(name, value)) is not None:
                row[name] = number
        return row

    def _add_known(self, step: int, metrics: Mapping[str, Any], line: int, time: float | None) -> None:
        """A step that is not the newest: a second record of it, or one out of order."""
        row = self._numbers(metrics)
        at = bisect_left(self._steps, step)
        if at == len(self._steps) or self._steps[at] != step:
            self.notes.add(NoteKind.OUT_OF_ORDER, f"step {step} is recorded after step {self._highest}", f"{self.name}:{line}")
            self._steps.insert(at, step)
            self._times.insert(at, math.nan if time is None else time)
            self._put(step, row)
            return
        known = {name: value for name in row if name in self._columns and (value := self._columns[name].get(step)) is not None}
        if all(_same(known[name], row[name]) for name in known):
            new = {name: value for name, value in row.items() if name not in known}
            self._put(step, new)  # two writers of one step, as trainers and evaluators do
            self._duplicates += bool(known) and not new
            return
        self._restart(step, row, line, time, self._times[at])

    def _put(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self._columns.setdefault(name, _Column()).put(step, value)

    def _restart(self, step: int, row: Mapping[str, float], line: int, time: float | None, known_time: float) -> None:
        if time is not None and time < known_time:
            words = f"line {line}: step {step} is recorded again with other values and an earlier time than what stands before it: two runs in one file"
            raise UnreadableRun(self.path, words)
        self._restarts += 1
        last = self._steps[-1]
        if self._restarts > MOST_RESTARTS and self._restarts > len(self._steps) / 5:
            raise UnreadableRun(self.path, f"line {line}: {self._restarts} steps are recorded again with other values: two runs, or two writers, in one file")
        cut = bisect_left(self._steps, step)
        del self._steps[cut:], self._times[cut:]
        for column in self._columns.values():
            column.cut(step)
        self._steps.append(step)
        self._times.append(math.nan if time is None else time)
        self._put(step, row)
        self._highest = step
        again = f"step {step}" if last == step else f"steps {step}–{last}"
        text = f"the run restarted at step {step}: the earlier record of {again} is replaced by the later one"
        self.notes.add(NoteKind.RESTART, text, f"{self.name}:{line}")

    def finish(self) -> tuple[np.ndarray, dict[str, Curve], list[Note]]:
        """(int64[S] steps, curves by metric, notes)."""
        steps = np.array(self._steps, dtype=np.int64)
        curves = {name: Curve(np.array(c.steps, dtype=np.int64), np.array(c.values, dtype=np.float64)) for name, c in self._columns.items() if len(c.steps)}
        return steps, curves, self.notes.finish() + self._summary(curves)

    def _summary(self, curves: dict[str, Curve]) -> list[Note]:
        notes = [Note(NoteKind.DUPLICATE, f"{self._duplicates} record(s) occur twice with equal values", self.name)] if self._duplicates else []
        notes += [Note(NoteKind.TEXT_VALUE, f"{count} value(s) of {name} are not numbers", self.name, name) for name, count in self._text.items()]
        notes += [Note(NoteKind.MISSING, f"{count} value(s) of {name} are null", self.name, name) for name, count in self._null.items()]
        for name, curve in curves.items():
            bad = curve.first_bad_step
            if bad is not None:
                count = int(np.count_nonzero(~np.isfinite(curve.values)))
                notes.append(Note(NoteKind.NON_FINITE, f"{name} is not finite on {count} step(s), first at step {bad}", self.name, name))
        return notes


def _same(known: float, value: float) -> bool:
    return known == value or (known != known and value != value)
