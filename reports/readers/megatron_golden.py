"""Megatron's golden values: metric -> {start_step, end_step, step_interval, values: {step: value}}."""

from __future__ import annotations

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_step
from reports.readers.documents import is_step_values, reference_run, series_table


class MegatronGoldenReader:
    name = "megatron-golden"
    priority = 20

    def sniff(self, source: Source) -> bool:
        document = source.document
        return isinstance(document, dict) and bool(document) and all(isinstance(v, dict) and isinstance(v.get("values"), dict) for v in document.values())

    def read(self, source: Source, how: Reading) -> list[Run]:
        if not self.sniff(source):
            raise UnreadableRun(source.path, "not one JSON document of metric -> {start_step, end_step, step_interval, values}")
        series = {name: entry["values"] for name, entry in source.document.items()}
        bad = [name for name, values in series.items() if values and not is_step_values(values)]
        if bad:
            raise UnreadableRun(source.path, f"{bad[0]}: its values are not step -> number")
        table = series_table(source, series)
        for name, entry in source.document.items():
            self._compare(source, table, name, entry)
        return [reference_run(source, self.name, table)]

    def _compare(self, source: Source, table: object, name: str, entry: dict[str, object]) -> None:
        """Steps outside the range that the entry states contradict it."""
        start, end = as_step(entry.get("start_step")), as_step(entry.get("end_step"))
        steps = [int(float(step)) for step in entry["values"]]  # type: ignore[attr-defined]
        outside = [step for step in steps if (start is not None and step < start) or (end is not None and step > end)]
        if outside:
            raise UnreadableRun(source.path, f"{name}: step {outside[0]} lies outside {start} to {end}, which the file states")
        if end is not None and steps and max(steps) < end:
            table.notes.add(NoteKind.MISSING, f"{name} is stated up to step {end} and ends at step {max(steps)}", source.name, name)  # type: ignore[attr-defined]


READER = MegatronGoldenReader()
