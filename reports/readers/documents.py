"""What readers of JSON documents share: metric -> {step: value} to curves, and what is said about reference files that prove nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reports.errors import UnreadableRun
from reports.model import Curve, Note, NoteKind, Run
from reports.readers.base import Source, as_number, as_step, text_step
from reports.readers.records import StepTable


def series_table(source: Source, series: Mapping[str, Mapping[str, Any]]) -> StepTable:
    """A table of metric -> step (as text) -> value. Raises UnreadableRun for a key that is no step or for one step written twice ("1" and "01")."""
    table = StepTable(source.path)
    rows: dict[int, dict[str, Any]] = {}
    for metric, values in series.items():
        for key, value in values.items():
            step = text_step(key)
            if step is None:
                raise UnreadableRun(source.path, f"{metric}: {key!r} is no step")
            if metric in rows.setdefault(step, {}):
                raise UnreadableRun(source.path, f"{metric}: step {step} is there twice")
            rows[step][metric] = value
    for step in sorted(rows):
        table.add(step, rows[step], 0)
    return table


def reference_run(source: Source, format: str, table: StepTable, manifest: dict[str, Any] | None = None) -> Run:
    """The run of a reference file. Metrics that are zero at every step are noted: such a reference passes anything that is zero too."""
    if not len(table):
        raise UnreadableRun(source.path, "holds no step with a value")
    steps, curves, notes = table.finish()
    if not curves:
        raise UnreadableRun(source.path, "holds no value that is a number")
    return Run(source.path, format, steps, curves, tuple(notes + vacuous(source, curves)), manifest or {})


def vacuous(source: Source, curves: Mapping[str, Curve]) -> list[Note]:
    return [
        Note(NoteKind.VACUOUS, f"{name} is 0 at all {len(curve.values)} steps: it proves nothing", source.name, name)
        for name, curve in curves.items()
        if len(curve.values) > 1 and not np.any(curve.values)
    ]


def is_step_values(value: Any) -> bool:
    """{"1": 0.5, "2": 0.4}: steps as text, numbers (or words for them) as values."""
    return isinstance(value, dict) and bool(value) and all(text_step(key) is not None for key in value) and all(_plain(item) for item in value.values())


def _plain(value: Any) -> bool:
    return value is None or as_number(value) is not None or isinstance(value, str)


def number_from(value: Any) -> int | None:
    """A whole number written as one or as text ("42"), as argument dumps hold it."""
    return text_step(value) if isinstance(value, str) else as_step(value)
