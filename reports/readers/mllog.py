"""MLPerf's `:::MLLOG {json}` lines, whatever stands before them on the line.

Points with a step in their metadata are metrics; an evaluation that carries only samples_count gets its step where samples and steps keep one ratio.
"""

from __future__ import annotations

from typing import Any

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, as_step
from reports.readers.json_text import json_value
from reports.readers.records import StepTable

MARK = ":::MLLOG"
EVALS = "eval_"


class MllogReader:
    name = "mllog"
    priority = 30

    def sniff(self, source: Source) -> bool:
        return not source.is_dir and MARK in source.head_text

    def read(self, source: Source, how: Reading) -> list[Run]:
        table = StepTable(source.path)
        facts: dict[str, Any] = {}
        ratios: set[float] = set()
        late: list[tuple[int, int, dict[str, Any]]] = []  # (line, samples, metrics) without a step
        status = ""
        for line, text, ended in source.lines(table.notes):
            record = _record(text, table, f"{source.name}:{line}", ended)
            if record is None:
                continue
            key, value, meta = str(record.get("key")), record.get("value"), record.get("metadata")
            meta = meta if isinstance(meta, dict) else {}
            step, samples = as_step(meta.get("step")), as_step(meta.get("samples_count"))
            metrics = value if isinstance(value, dict) else {key: value} if key.startswith(EVALS) and as_number(value) is not None else None
            if record.get("event_type") != "POINT_IN_TIME" or metrics is None:
                status = str(meta.get("status") or status) if key == "run_stop" else status
                _fact(facts, key, value, meta, source, line)
            elif step is not None:
                if samples and step:
                    ratios.add(samples / step)
                table.add(step, metrics, line, as_number(record.get("time_ms")))
            elif samples is not None:
                late.append((line, samples, metrics))
            else:
                _fact(facts, key, value, meta, source, line)
        self._add_late(table, late, ratios)
        if not len(table):
            raise UnreadableRun(source.path, "no MLLOG line holds a metric with a step")
        steps, curves, notes = table.finish()
        events = ({"event": "early_stop", "reason": f"run_stop with status {status}"},) if status else ()
        return [Run(source.path, self.name, steps, curves, tuple(notes), _manifest(facts), events)]

    def _add_late(self, table: StepTable, late: list[tuple[int, int, dict[str, Any]]], ratios: set[float]) -> None:
        if late and not len(table):  # no step anywhere: samples are the axis
            table.notes.add(NoteKind.ASSUMED, "steps are counted by samples_count: no line names a step", table.name)
            ratios = {1.0}
        ratio = next(iter(ratios)) if len(ratios) == 1 else None
        for line, samples, metrics in late:
            if ratio and samples % ratio == 0:
                table.add(int(samples / ratio), metrics, line)
            else:
                names = ", ".join(metrics)
                table.notes.add(NoteKind.MISSING, f"{names} at {samples} samples: which step that is the file does not say; left out", f"{table.name}:{line}")


def _record(text: str, table: StepTable, where: str, ended: bool) -> dict[str, Any] | None:
    """The record of a line; None for other lines. Two records on one line are a broken one."""
    _, mark, body = text.partition(MARK)
    if not mark:
        return None
    try:
        record = json_value(body)
    except (ValueError, RecursionError):
        table.notes.add(NoteKind.BROKEN_LINE if ended else NoteKind.TORN_LINE, f"not an MLLOG record: {body.strip()[:40]!r}", where)
        return None
    return record if isinstance(record, dict) else None


def _fact(facts: dict[str, Any], key: str, value: Any, meta: dict[str, Any], source: Source, line: int) -> None:
    if key == "seed" and facts.get("seed", value) != value:
        raise UnreadableRun(source.path, f"line {line}: seed {value} after seed {facts['seed']}: two runs in one file")
    if value is not None:
        facts.setdefault(key, value)


def _manifest(facts: dict[str, Any]) -> dict[str, Any]:
    manifest: dict[str, Any] = {"mllog": {key: value for key, value in facts.items() if not isinstance(value, (dict, list))}}
    if isinstance(facts.get("seed"), int):
        manifest["seed"] = facts["seed"]
    if isinstance(facts.get("max_steps"), int):
        manifest["planned_steps"] = facts["max_steps"]
    if facts.get("submission_platform"):
        manifest["devices"] = [str(facts["submission_platform"])]
    return manifest


READER = MllogReader()
