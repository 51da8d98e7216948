"""Following a run while it writes: new whole lines of metrics.jsonl and events.jsonl, a torn last line left for the next look."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

RECENT = 20  # steps that the speed and the reward shown are taken of


class LineTail:
    """The records that were added to a JSONL file since the last look. Lines that are not JSON objects are counted, not repaired."""

    def __init__(self, path: Path):
        self.path = path
        self.broken = 0
        self._offset = 0
        self._rest = b""

    def new(self) -> list[dict[str, Any]]:
        try:
            if self.path.stat().st_size < self._offset:  # written anew: its records come again, and a step counts once
                self._offset, self._rest = 0, b""
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [record for record in map(self._record, lines) if record is not None]

    def _record(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self.broken += 1
            return None
        return value


@dataclass
class Progress:
    """What is known of a run so far. `reward` is the mean over the last steps that have one."""

    planned: int
    steps: set[int] = field(default_factory=set)
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    stage: str = "starting"
    error: str | None = None  # text of the last error event
    early_stop: str | None = None  # reason of a recorded early stop
    unreadable: str | None = None  # why another framework's log gives no curve

    @property
    def done(self) -> int:
        return len(self.steps)

    @property
    def reward(self) -> float | None:
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def seconds_per_step(self) -> float | None:
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else None

    @property
    def seconds_left(self) -> float | None:
        pace = self.seconds_per_step
        return None if pace is None else pace * max(self.planned - self.done, 0)


class Follows(Protocol):
    """Keeps a `Progress` up to date from what a run writes. `quiet_s` is the time since it wrote anything."""

    progress: Progress

    @property
    def quiet_s(self) -> float: ...

    def look(self, *, last: bool = False) -> Progress: ...


class Follower:
    """Follows vime's run directory."""

    def __init__(self, run: Path, metric: str, planned: int):
        self.progress = Progress(planned)
        self._metric = metric
        self._metrics = LineTail(run / "metrics.jsonl")
        self._events = LineTail(run / "events.jsonl")
        self._last_change = time.monotonic()

    @property
    def quiet_s(self) -> float:
        return time.monotonic() - self._last_change

    @property
    def broken_lines(self) -> int:
        return self._metrics.broken

    def look(self, *, last: bool = False) -> Progress:
        metrics, events = self._metrics.new(), self._events.new()
        if metrics or events:
            self._last_change = time.monotonic()
        for record in metrics:
            self._step(record)
        for event in events:
            self._event(event)
        return self.progress

    def _step(self, record: dict[str, Any]) -> None:
        step, values = record.get("step"), record.get("metrics")
        if not isinstance(step, int) or not isinstance(values, dict):
            return
        self.progress.steps.add(step)
        self.progress.stage = f"after step {step}"
        if isinstance(moment := record.get("time"), int | float):
            self.progress.times.append(float(moment))
        if isinstance(value := values.get(self._metric), int | float):
            self.progress.rewards.append(float(value))

    def _event(self, event: dict[str, Any]) -> None:
        kind = str(event.get("event", "?"))
        if kind == "error":
            stage, text = str(event.get("stage", "unknown stage")), str(event.get("text", ""))
            self.progress.error = text if text.startswith(f"{stage}: ") else f"{stage}: {text}"
        elif kind == "early_stop":
            self.progress.early_stop = str(event.get("reason") or "no reason recorded")
        if not self.progress.steps:
            self.progress.stage = kind
