"""NeMo-RL's metrics JSON: metric -> {step: value}."""

from __future__ import annotations

from reports.errors import UnreadableRun
from reports.model import Run
from reports.readers.base import Reading, Source
from reports.readers.documents import is_step_values, reference_run, series_table


class NemoRlReader:
    name = "nemo-rl"
    priority = 21

    def sniff(self, source: Source) -> bool:
        document = source.document
        return isinstance(document, dict) and bool(document) and all(is_step_values(value) for value in document.values())

    def read(self, source: Source, how: Reading) -> list[Run]:
        if not self.sniff(source):
            raise UnreadableRun(source.path, "not one JSON document of metric -> {step: number}")
        return [reference_run(source, self.name, series_table(source, source.document))]


READER = NemoRlReader()
