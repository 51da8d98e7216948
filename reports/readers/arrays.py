"""Numbers in JSON lists without steps: [1.43, 1.05] or metric -> [..]. Steps are the positions, from 0, and the result says so."""

from __future__ import annotations

from typing import Any

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number
from reports.readers.documents import reference_run
from reports.readers.records import StepTable

METRIC = "value"  # of a bare list: --name train/loss=value


class ArraysReader:
    name = "arrays"
    priority = 25

    def sniff(self, source: Source) -> bool:
        return bool(_lists(source.document))

    def read(self, source: Source, how: Reading) -> list[Run]:
        lists = _lists(source.document)
        if not lists:
            raise UnreadableRun(source.path, "not one JSON list of numbers, and no lists of numbers by metric")
        table = StepTable(source.path)
        length = max(len(values) for values in lists.values())
        for step in range(length):
            table.add(step, {name: values[step] for name, values in lists.items() if step < len(values)}, 0)
        table.notes.add(NoteKind.ASSUMED, f"the file names no steps: numbered 0 to {length - 1} by position", source.name)
        return [reference_run(source, self.name, table)]


def _lists(document: Any) -> dict[str, list[Any]]:
    found = {METRIC: document} if isinstance(document, list) else document if isinstance(document, dict) else {}
    good = bool(found) and all(isinstance(values, list) and values and all(_number(value) for value in values) for values in found.values())
    return found if good else {}


def _number(value: Any) -> bool:
    return value is None or as_number(value) is not None


READER = ArraysReader()
