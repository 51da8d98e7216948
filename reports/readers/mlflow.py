"""MLflow: a run's folder of the file store (metrics/<name>, lines of `timestamp value step`), or the JSON that its REST interface answers with.

The CSV download is a long table (`long_table.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, as_step, text_step
from reports.readers.records import StepTable


class MlflowReader:
    name = "mlflow"
    priority = 16

    def sniff(self, source: Source) -> bool:
        if source.is_dir:
            return source.child("meta.yaml") is not None and source.child("metrics") is not None
        return bool(points_of(source.document))

    def read(self, source: Source, how: Reading) -> list[Run]:
        table = StepTable(source.path)
        if source.is_dir:
            metrics = source.child("metrics")
            if metrics is None:
                raise UnreadableRun(source.path, "no folder metrics in it")
            for file in _files(metrics):
                self._read_file(file, file.url[len(metrics.url) :].strip("/"), table)
        for point in points_of(source.document):
            step = as_step(number_of(point.get("step")))
            if step is None:
                table.notes.add(NoteKind.BROKEN_LINE, f"no whole step (step is {point.get('step')!r})", source.name)
                continue
            table.add(step, {str(point["key"]): point["value"]}, 0, as_number(point.get("timestamp")))
        if not len(table):
            raise UnreadableRun(source.path, "no metric with a step in it")
        steps, curves, notes = table.finish()
        return [Run(source.path, self.name, steps, curves, tuple(notes))]

    def _read_file(self, file: Source, metric: str, table: StepTable) -> None:
        table.name = metric
        for line, text, ended in file.lines(table.notes):
            cells = text.split()
            step = text_step(cells[2]) if len(cells) == 3 else None
            if not cells:
                continue
            if step is None or not ended:  # the step stands last: cut, it would be another step
                kind = NoteKind.BROKEN_LINE if ended else NoteKind.TORN_LINE
                table.notes.add(kind, f"not a whole `timestamp value step`: {text[:40]!r}", f"{metric}:{line}")
                continue
            table.add(step, {metric: cells[1]}, line, as_number(cells[0]))


def points_of(document: Any) -> list[dict[str, Any]]:
    """[{key, value, step, timestamp}] of an answer of get-history (`metrics`) or runs/get (`run.data.metrics`: last values only, refused)."""
    points = document.get("metrics") if isinstance(document, dict) else None
    good = isinstance(points, list) and bool(points) and all(isinstance(p, dict) and {"key", "value", "step"} <= p.keys() for p in points)
    return points if good and isinstance(points, list) else []


def number_of(value: Any) -> Any:
    """Whole numbers come as text from interfaces that write 64-bit integers so."""
    return text_step(value) if isinstance(value, str) else value


def _files(folder: Source) -> Iterator[Source]:
    for child in folder.children():
        if child.is_dir:
            yield from _files(child)
        else:
            yield child


READER = MlflowReader()
