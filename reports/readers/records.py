"""From JSON lines of {step, metrics} to curves: what wins, what is dropped, and what is said about it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reports.model import Curve, Note, NoteKind
from reports.readers.base import as_number

_DECODER = json.JSONDecoder()


def json_lines(path: Path, notes: list[Note], encoding: str = "utf-8-sig") -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every JSON object in the file. Torn, broken and glued lines are noted; whole objects in them are kept."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            text = raw.decode(encoding if number == 1 else "utf-8", errors="replace").strip()
            if text:
                yield from ((number, item) for item in _objects(text, path, number, raw.endswith(b"\n"), notes))


def _objects(text: str, path: Path, number: int, ended: bool, notes: list[Note]) -> list[dict[str, Any]]:
    try:
        items = [json.loads(text)]
    except (ValueError, RecursionError):
        items = _salvage(text, f"{path.name}:{number}", ended, notes)
    objects = [item for item in items if isinstance(item, dict)]
    if len(objects) < len(items):
        notes.append(Note(NoteKind.BROKEN_LINE, "not an object with a step", f"{path.name}:{number}"))
    return objects


def _salvage(text: str, where: str, ended: bool, notes: list[Note]) -> list[Any]:
    """Whole objects in a line that is not one: glued records, or a torn record with the next one written behind it."""
    items, rest = _decode_from(text)
    if rest:
        start = rest.rfind('{"step"')
        behind, left = _decode_from(rest[start:]) if start > 0 else ([], rest)
        items += behind if not left else []
        kind = NoteKind.BROKEN_LINE if ended or (behind and not left) else NoteKind.TORN_LINE
        notes.append(Note(kind, f"{len(rest)} characters are not a record: {rest[:40]!r}", where))
    if items:
        notes.append(Note(NoteKind.GLUED_LINE, f"{len(items)} whole record(s) kept from a damaged line", where))
    return items


def _decode_from(text: str) -> tuple[list[Any], str]:
    items: list[Any] = []
    while text:
        try:
            item, end = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            break
        items.append(item)
        text = text[end:].lstrip()
    return items, text


@dataclass
class StepTable:
    """Records by step. A record of a step that is there already, with other values, is a restart: it and what follows replace the abandoned steps."""

    source: str
    rows: dict[int, dict[str, float]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    _highest: int = -1
    _duplicates: int = 0
    _text: Counter[str] = field(default_factory=Counter)
    _null: Counter[str] = field(default_factory=Counter)

    def add(self, step: int, metrics: dict[str, Any], line: int) -> None:
        row = self._numbers(metrics)
        known = self.rows.get(step)
        if known is None:
            if step < self._highest:
                self.notes.append(Note(NoteKind.OUT_OF_ORDER, f"step {step} is recorded after step {self._highest}", f"{self.source}:{line}"))
            self.rows[step] = row
        elif known.keys().isdisjoint(row):
            known.update(row)  # two writers of one step, as trainers and evaluators do
        elif _same(known, row):
            self._duplicates += 1
        else:
            self._restart(step, row, line)
        self._highest = max(self._highest, step)

    def _restart(self, step: int, row: dict[str, float], line: int) -> None:
        abandoned = [other for other in self.rows if other >= step]
        for other in abandoned:
            del self.rows[other]
        self.rows[step] = row
        self._highest = step
        last = max(abandoned)
        again = f"step {step}" if last == step else f"steps {step}–{last}"
        text = f"the run restarted at step {step}: the earlier record of {again} is replaced by the later one"
        self.notes.append(Note(NoteKind.RESTART, text, f"{self.source}:{line}"))

    def _numbers(self, metrics: dict[str, Any]) -> dict[str, float]:
        row: dict[str, float] = {}
        for name, value in metrics.items():
            number = value if type(value) is float else as_number(value)
            if number is not None:
                row[name] = number
            elif value is None:
                self._null[name] += 1
            else:
                self._text[name] += 1
        return row

    def finish(self) -> tuple[np.ndarray, dict[str, Curve], list[Note]]:
        """(int64[S] steps, curves by metric, notes)."""
        steps = np.array(sorted(self.rows), dtype=np.int64)
        columns: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
        for step in steps.tolist():
            for name, value in self.rows[step].items():
                column = columns[name]
                column[0].append(step)
                column[1].append(value)
        curves = {name: Curve(np.array(at, dtype=np.int64), np.array(values, dtype=np.float64)) for name, (at, values) in columns.items()}
        return steps, curves, self.notes + self._summary(curves)

    def _summary(self, curves: dict[str, Curve]) -> list[Note]:
        notes = [Note(NoteKind.DUPLICATE, f"{self._duplicates} record(s) occur twice with equal values", self.source)] if self._duplicates else []
        notes += [Note(NoteKind.TEXT_VALUE, f"{count} value(s) of {name} are not numbers", self.source, name) for name, count in self._text.items()]
        notes += [Note(NoteKind.MISSING, f"{count} value(s) of {name} are null", self.source, name) for name, count in self._null.items()]
        for name, curve in curves.items():
            bad = curve.first_bad_step
            if bad is not None:
                count = int(np.count_nonzero(~np.isfinite(curve.values)))
                notes.append(Note(NoteKind.NON_FINITE, f"{name} is not finite on {count} step(s), first at step {bad}", self.source, name))
        return notes


def _same(known: dict[str, float], row: dict[str, float]) -> bool:
    return known.keys() == row.keys() and all(known[name] == row[name] or (known[name] != known[name] and row[name] != row[name]) for name in row)


def step_of(record: dict[str, Any]) -> int | None:
    """The step a record names, or None: a whole number, not negative; text and fractions are no steps."""
    step = record.get("step")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None
