"""Runs of other frameworks: the manifest that the runner writes for them, and following their own log through the readers of `reports`."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import Any

from e2e.follow import Progress
from e2e.records import write_json
from e2e.run_plan import RunPlan
from e2e.verdict import claim
from matrix.declarations import Framework

READ_SHARE = 0.05  # of the time that may go into reading a log anew
LEAST_S = 1.0  # between two readings


def write_manifest(plan: RunPlan, framework: Framework) -> None:
    """manifest.json of a framework that writes none: whose run it is, and in which file and format its curves lie (`reports/readers/foreign_run.py`)."""
    write_json(
        plan.directory / "manifest.json",
        {
            "schema_version": 1,
            "labels": plan.config["labels"],
            "seed": plan.seed,
            "planned_steps": plan.planned,
            "host": platform.node(),
            "commit": framework.version,  # of the code that trains
            "versions": {framework.name: framework.version},
            "framework": {"name": framework.name, "version": framework.version},
            "source": claim(framework),
            "curves": {"file": framework.curves, "format": framework.format, "metrics": framework.metrics},
            "config_hash": plan.hash,
            "attempts": [],
        },
    )


class ForeignFollower:
    """Follows a run by reading its log anew when it has grown, at most a twentieth of the time. A log without a step yet is no fault."""

    def __init__(self, plan: RunPlan, framework: Framework):
        self.progress = Progress(plan.planned)
        self._directory, self._metric = plan.directory, plan.cell.rule.metric
        self._log = plan.directory / framework.curves
        self._seen: tuple[int, int] | None = None
        self._pending = False
        self._next = 0.0
        self._last_change = time.monotonic()

    @property
    def quiet_s(self) -> float:
        return time.monotonic() - self._last_change

    def look(self, *, last: bool = False) -> Progress:
        state = _state(self._log)
        if state != self._seen:
            self._seen, self._last_change, self._pending = state, time.monotonic(), True
        if self._pending and (last or time.monotonic() >= self._next):
            self._pending = False
            begin = time.monotonic()
            self._read()
            self._next = time.monotonic() + max(LEAST_S, (time.monotonic() - begin) / READ_SHARE)
        return self.progress

    def _read(self) -> None:
        from reports.readers import read_or_note

        run = read_or_note(self._directory)
        self.progress.unreadable = next((f"its log gives no curve: {note.text}" for note in run.notes if note.kind == "unreadable"), None)
        steps = [int(step) for step in run.steps]
        if len(steps) > self.progress.done:
            self.progress.times.append(time.time())
        self.progress.steps = set(steps)
        self.progress.stage = f"after step {steps[-1]}" if steps else "writing its log, no step in it yet"
        curve: Any = run.curves.get(self._metric)
        if curve is not None:
            self.progress.rewards.clear()
            self.progress.rewards.extend(float(value) for value in curve.values[-(self.progress.rewards.maxlen or 1) :])


def _state(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns
