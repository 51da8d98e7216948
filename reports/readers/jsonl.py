"""Plain JSONL of {"step": 3, "metrics": {"rollout/reward_mean": 0.41}}, one record a line.

A line with a `manifest` or `labels` object and no step describes the run (seed, labels, commit): {"manifest": {"seed": 3, "labels": {...}}}.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reports.errors import UnreadableRun
from reports.model import Note, NoteKind, Run
from reports.readers.records import StepTable, json_lines, step_of


class JsonlReader:
    name = "jsonl"
    priority = 50

    def sniff(self, path: Path, head: bytes) -> bool:
        return path.is_file() and head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{" and b'"metrics"' in head and b'"step"' in head

    def read(self, path: Path) -> Run:
        manifest: dict[str, Any] = {}
        notes: list[Note] = []
        table = StepTable(path.name)
        for line, record in json_lines(path, notes):
            metrics = record.get("metrics")
            step = step_of(record)
            if step is not None and isinstance(metrics, dict):
                table.add(step, metrics, line)
            elif "step" not in record and ("manifest" in record or "labels" in record):
                manifest |= record.get("manifest", {}) | ({"labels": record["labels"]} if "labels" in record else {})
            else:
                notes.append(Note(NoteKind.BROKEN_LINE, f"no whole step with metrics (step is {record.get('step')!r})", f"{path.name}:{line}"))
        steps, curves, found = table.finish()
        if not len(steps):
            raise UnreadableRun(path, "no line holds a step with metrics")
        return Run(path, self.name, steps, curves, tuple(notes + found), manifest)


READER = JsonlReader()
