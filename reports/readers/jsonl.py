"""JSON lines of any {step, metrics} shape, one record a line.

{"step": 3, "metrics": {"rollout/reward_mean": 0.41}}     metrics in an object (also "data", "values", "logs", "scalars")
{"_step": 3, "train/loss": 0.2, "_timestamp": 1767.2}      flat, as W&B's history
{"step": 3, "key": "train/loss", "value": 0.2}             one metric a line (also "name", "tag", "metric")

A line with a `manifest` or `labels` object and no step describes the run (seed, labels, commit): {"manifest": {"seed": 3, "labels": {...}}}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, as_step, named_value
from reports.readers.names import Names, names, pick_step
from reports.readers.records import StepTable, json_lines

HOLDERS = ("metrics", "data", "values", "logs", "scalars")
_OBJECT = re.compile(r'\s*\{\s*(["}]|$)')  # a Python dict, with single quotes, is a console log's


class JsonlReader:
    name = "jsonl"
    priority = 50

    def sniff(self, source: Source) -> bool:
        return _OBJECT.match(source.head_text) is not None and (source.document is None or _single_record(source))

    def read(self, source: Source, how: Reading) -> list[Run]:
        manifest: dict[str, Any] = {}
        table = StepTable(source.path)
        declared = names(how.table)
        key: str | None = None
        identity = Identity(source, declared)
        for line, record in json_lines(source, table.notes):
            identity.check(record, line)
            if key is None or key not in record:
                key = _step_key(record, declared, how, key, table)
            if how.step == "order":
                step: int | None = len(table)
            else:
                step = as_step(record.get(key)) if key is not None else None
            metrics = metrics_of(record, key, declared) if step is not None else None
            if step is not None and metrics is not None:
                table.add(step, metrics, line, clock_of(record, declared))
            elif ("manifest" in record or "labels" in record) and (key is None or key not in record):
                manifest |= record.get("manifest", {}) | ({"labels": record["labels"]} if "labels" in record else {})
            else:
                table.notes.add(NoteKind.BROKEN_LINE, f"no whole step with metrics (step is {record.get(key or 'step')!r})", f"{source.name}:{line}")
        if not len(table):
            raise UnreadableRun(source.path, "no line holds a step with metrics" + (f" (step in {how.step!r})" if how.step else ""))
        steps, curves, notes = table.finish()
        return [Run(source.path, self.name, steps, curves, tuple(notes), manifest)]


class Identity:
    """Whose records these are, where they say it: seed, run and the like, beside the metrics or in a line that describes the run."""

    def __init__(self, source: Source, declared: Names) -> None:
        self._source, self._names = source, declared.runs
        self._known: dict[str, Any] = {}

    def check(self, record: Mapping[str, Any], line: int) -> None:
        """Raises UnreadableRun where a record says another than the ones before it."""
        manifest = record.get("manifest")
        labels = (manifest.get("labels") if isinstance(manifest, dict) else None) or record.get("labels")
        science = {"science_hash": labels["science_hash"]} if isinstance(labels, dict) and "science_hash" in labels else {}
        for name, value in {**{name: record[name] for name in self._names if name in record}, **_seed_of(manifest), **science}.items():
            if value is not None and self._known.setdefault(name, value) != value:
                words = f"line {line}: {name} {value!r} after {name} {self._known[name]!r}: two runs in one file"
                raise UnreadableRun(self._source.path, words)


def _seed_of(manifest: Any) -> dict[str, Any]:
    return {"seed": manifest["seed"]} if isinstance(manifest, dict) and "seed" in manifest else {}


def _single_record(source: Source) -> bool:
    """A file of one line is one JSON document as well."""
    document = source.document
    if not isinstance(document, dict) or pick_step(document, names(), None) is None:
        return False
    return isinstance(document.get("metrics"), dict) or named_value(document) is not None


def _step_key(record: Mapping[str, Any], declared: Names, how: Reading, before: str | None, table: StepTable) -> str | None:
    """The key that holds the step: found once, and then the same for every record, or two counts would be mixed."""
    if before is not None:
        return before
    found = pick_step(record, declared, None if how.step == "order" else how.step)
    if found is None:
        return None
    others = [name for name in (*declared.steps, *declared.counts) if name in record and name != found]
    if found.lower() in declared.counts or others:
        words = f"steps are counted by {found!r}" + (f" ({', '.join(map(repr, others))} is there too)" if others else "")
        table.notes.add(NoteKind.ASSUMED, f"{words}: --step NAME takes another", table.name)
    return found


def metrics_of(record: Mapping[str, Any], key: str | None, declared: Names) -> Mapping[str, Any] | None:
    """The metrics of a record in any of the shapes, or None where it has none."""
    for holder in HOLDERS:
        if isinstance(record.get(holder), dict):
            found: Mapping[str, Any] = record[holder]
            return found
    if (one := named_value(record)) is not None:
        return one
    if "metrics" in record:
        return None
    left = {name: value for name, value in record.items() if name != key and name.lower() not in declared.bookkeeping and name not in declared.steps}
    return left or None


def clock_of(record: Mapping[str, Any], declared: Names) -> float | None:
    """When the record was written, in its own unit, or None."""
    return next((as_number(record[name]) for name in declared.clocks if name in record), None)


READER = JsonlReader()
