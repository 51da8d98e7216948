"""runner.json: what the runner knows of a run that the run itself cannot tell."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORD = "runner.json"


@dataclass(frozen=True)
class RunRecord:
    """One run as its runner saw it. Written when the run starts, as one whose end nobody saw, and again when it ends."""

    cell: str
    seed: int
    command: list[str]
    config_hash: str
    code_hash: str
    started: float
    ended: float | None  # null: it runs, or its runner was lost
    exit: int | None
    signal: str | None
    stopped_by: str | None
    outcome: str | None  # null: finished, can be judged
    reason: str
    infra_class: str | None
    steps: int
    planned_steps: int
    leased_devices: list[int]
    attempt: int
    left_over: list[str]
    pid: int | None = None  # of the guard, on `host`: SIGTERM to it ends the run and everything below it
    host: str = ""
    environment: dict[str, str] = field(default_factory=dict)  # what was added to the runner's own
    earlier: list[dict[str, Any]] = field(default_factory=list)  # attempts lost to INFRA before this one
    schema_version: int = 1

    @property
    def finished(self) -> bool:
        return self.outcome is None


def read_record(directory: Path) -> RunRecord | None:
    """The record of a run directory; None where there is none, or one of another version: the run was then made by hand."""
    file = directory / RECORD
    if not file.is_file():
        return None
    try:
        return RunRecord(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError):
        return None


def write_json(file: Path, value: Any) -> None:
    """Write whole or not at all."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)
