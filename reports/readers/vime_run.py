"""vime's run directory: manifest.json, metrics.jsonl, events.jsonl, runner.json (docs/architecture.md, Run directory)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reports.errors import UnreadableRun
from reports.model import Note, NoteKind, Run
from reports.readers.records import StepTable, json_lines, step_of


class VimeRunReader:
    name = "vime"
    priority = 10

    def sniff(self, path: Path, head: bytes) -> bool:
        return path.is_dir() and (path / "metrics.jsonl").is_file()

    def read(self, path: Path) -> Run:
        metrics = path / "metrics.jsonl"
        if not metrics.is_file():
            raise UnreadableRun(path, "no metrics.jsonl in it")
        notes: list[Note] = []
        table = StepTable("metrics.jsonl")
        for line, record in json_lines(metrics, notes):
            values, step = record.get("metrics"), step_of(record)
            if step is None or not isinstance(values, dict):
                notes.append(Note(NoteKind.BROKEN_LINE, f"no whole step with metrics (step is {record.get('step')!r})", f"metrics.jsonl:{line}"))
                continue
            table.add(step, values, line)
        steps, curves, found = table.finish()
        if not len(steps):
            raise UnreadableRun(path, "metrics.jsonl holds no step")
        manifest = _object(path / "manifest.json", notes, required=True)
        runner = _object(path / "runner.json", notes, required=False)
        events = _events(path / "events.jsonl", notes)
        notes += found + _attempts(manifest)
        return Run(path, self.name, steps, curves, tuple(notes), manifest, events, runner, str(manifest.get("content_hash") or ""))


def _object(path: Path, notes: list[Note], required: bool) -> dict[str, Any]:
    if not path.is_file():
        if required:
            notes.append(Note(NoteKind.MISSING, f"{path.name} is missing: seed, labels and planned steps are unknown", path.name))
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        notes.append(Note(NoteKind.BROKEN_LINE, f"{path.name} is not JSON ({error})", path.name))
        return {}
    if not isinstance(value, dict):
        notes.append(Note(NoteKind.BROKEN_LINE, f"{path.name} is not an object", path.name))
        return {}
    return value


def _events(path: Path, notes: list[Note]) -> tuple[dict[str, Any], ...]:
    return tuple(event for _, event in json_lines(path, notes)) if path.is_file() else ()


def _attempts(manifest: dict[str, Any]) -> list[Note]:
    attempts = manifest.get("attempts")
    if not isinstance(attempts, list) or len(attempts) < 2:
        return []
    reasons = ", ".join(str(attempt.get("reason", "?")) for attempt in attempts if isinstance(attempt, dict))
    return [Note(NoteKind.RESTART, f"{len(attempts)} attempts ({reasons})", "manifest.json")]


READER = VimeRunReader()
