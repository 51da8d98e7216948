"""TRL's reference JSON: {"config": {...}, "env": {...}, "steps": [{"step": 1, "loss": 0.69}]}."""

from __future__ import annotations

from typing import Any

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_step
from reports.readers.documents import number_from, reference_run
from reports.readers.records import StepTable


class TrlReferenceReader:
    name = "trl-reference"
    priority = 22

    def sniff(self, source: Source) -> bool:
        document = source.document
        return isinstance(document, dict) and _is_records(document.get("steps"))

    def read(self, source: Source, how: Reading) -> list[Run]:
        if not self.sniff(source):
            raise UnreadableRun(source.path, 'not one JSON document with "steps": [{"step": …}]')
        document = source.document
        table = StepTable(source.path)
        in_order(source, document["steps"])
        for position, record in enumerate(document["steps"], start=1):
            add_record(table, record, position)
        return [reference_run(source, self.name, table, _manifest(document))]


def add_record(table: StepTable, record: dict[str, Any], position: int, ignored: tuple[str, ...] = ()) -> None:
    """One {"step": 3, "loss": 0.5} of a list; one without a step is noted."""
    step = as_step(record.get("step"))
    if step is None:
        table.notes.add(NoteKind.BROKEN_LINE, f"no whole step (step is {record.get('step')!r})", f"{table.name}: record {position}")
        return
    table.add(step, {name: value for name, value in record.items() if name != "step" and name not in ignored}, position)


def in_order(source: Source, records: list[Any]) -> None:
    """Raises UnreadableRun where a step is lower than one before it: such a list is written in one go, so it was put together by hand."""
    before = -1
    for position, record in enumerate(records, start=1):
        step = as_step(record.get("step")) if isinstance(record, dict) else None
        if step is not None and step < before:
            raise UnreadableRun(source.path, f"record {position} is of step {step}, after step {before}: the records are out of order")
        before = before if step is None else step


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value) and any("step" in item for item in value)


def _manifest(document: dict[str, Any]) -> dict[str, Any]:
    config, env = document.get("config"), document.get("env")
    arguments = config.get("args") if isinstance(config, dict) else None
    arguments = arguments if isinstance(arguments, dict) else {}
    env = env if isinstance(env, dict) else {}
    found = {
        "seed": number_from(arguments.get("seed")),
        "planned_steps": number_from(arguments.get("max_steps")),
        "versions": {name: str(version) for name, version in env.items() if name != "gpu"} or None,
        "devices": [str(env["gpu"])] if env.get("gpu") else None,
    }
    return {name: value for name, value in found.items() if value is not None}


READER = TrlReferenceReader()
