"""vime's run directory: manifest.json, metrics.jsonl, events.jsonl, runner.json (docs/architecture.md, Run directory)."""

from __future__ import annotations

from typing import Any

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, as_step
from reports.readers.json_text import json_value
from reports.readers.notes import Notes
from reports.readers.records import StepTable, json_lines


class VimeRunReader:
    name = "vime"
    priority = 10

    def sniff(self, source: Source) -> bool:
        return source.is_dir and source.child("metrics.jsonl") is not None

    def read(self, source: Source, how: Reading) -> list[Run]:
        metrics = source.child("metrics.jsonl") if source.is_dir else None
        if metrics is None:
            raise UnreadableRun(source.path, "no metrics.jsonl in it")
        table = StepTable(source.path, "metrics.jsonl")
        for line, record in json_lines(metrics, table.notes):
            values, step = record.get("metrics"), as_step(record.get("step"))
            if step is None or not isinstance(values, dict):
                table.notes.add(NoteKind.BROKEN_LINE, f"no whole step with metrics (step is {record.get('step')!r})", f"metrics.jsonl:{line}")
                continue
            table.add(step, values, line, as_number(record.get("time")))
        if not len(table):
            raise UnreadableRun(source.path, "metrics.jsonl holds no step")
        steps, curves, found = table.finish()
        notes = Notes()
        manifest = _object(source, "manifest.json", notes, required=True)
        runner = _object(source, "runner.json", notes, required=False)
        events = _events(source, notes)
        _attempts(manifest, notes)
        content_hash = str(manifest.get("content_hash") or "")
        return [Run(source.path, self.name, steps, curves, tuple(found + notes.finish()), manifest, events, runner, content_hash)]


def _object(folder: Source, name: str, notes: Notes, required: bool) -> dict[str, Any]:
    source = folder.child(name)
    if source is None:
        if required:
            notes.add(NoteKind.MISSING, f"{name} is missing: seed, labels and planned steps are unknown", name)
        return {}
    try:
        with source.open() as file:
            value = json_value(file.read().decode("utf-8-sig"))
    except ValueError as error:
        notes.add(NoteKind.BROKEN_LINE, f"{name} is not JSON ({error})", name)
        return {}
    if not isinstance(value, dict):
        notes.add(NoteKind.BROKEN_LINE, f"{name} is not an object", name)
        return {}
    return value


def _events(folder: Source, notes: Notes) -> tuple[dict[str, Any], ...]:
    source = folder.child("events.jsonl")
    return tuple(event for _, event in json_lines(source, notes)) if source is not None else ()


def _attempts(manifest: dict[str, Any], notes: Notes) -> None:
    attempts = manifest.get("attempts")
    if isinstance(attempts, list) and len(attempts) >= 2:
        reasons = ", ".join(str(attempt.get("reason", "?")) for attempt in attempts if isinstance(attempt, dict))
        notes.add(NoteKind.RESTART, f"{len(attempts)} attempts ({reasons})", "manifest.json")


READER = VimeRunReader()
