"""Two columns of numbers without a header, `step value` a line, between them blanks, a tab, a comma or a semicolon."""

from __future__ import annotations

import re

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, text_step
from reports.readers.records import StepTable
from reports.readers.tables import MOST_BROKEN, NO_LINE_END, Numbers

METRIC = "value"  # the file does not say what it holds: --name train/loss=value
_SPLIT = re.compile(r"\s*[;\t]\s*|[ ]+|,(?=\s|[-+]?\d)")
_SAMPLE = 5


class ColumnsReader:
    name = "columns"
    priority = 70

    def sniff(self, source: Source) -> bool:
        lines = [] if source.is_dir else [line for line in source.head_text.splitlines() if line.strip() and not line.startswith("#")]
        rows = [_cells(line) for line in lines[:_SAMPLE]]
        return bool(rows) and sum(_fits(row) for row in rows) > len(rows) / 2

    def read(self, source: Source, how: Reading) -> list[Run]:
        table, numbers = StepTable(source.path), Numbers(source)
        broken = 0
        for line, text, ended in source.lines(table.notes):
            cells = _cells(text.lstrip("\ufeff"))
            if not any(cells) or text.startswith("#"):
                continue
            step = text_step(cells[0]) if len(cells) == 2 else None
            if step is None or not ended:
                broken += ended
                why = "not a step and a value" if ended else NO_LINE_END
                table.notes.add(NoteKind.BROKEN_LINE if ended else NoteKind.TORN_LINE, f"{why}: {text[:40]!r}", f"{source.name}:{line}")
                continue
            table.add(step, {METRIC: numbers.parse(cells[1])}, line)
        numbers.check()
        if not len(table) or broken > MOST_BROKEN * (len(table) + broken):
            raise UnreadableRun(source.path, f"{broken} of {len(table) + broken} lines are not a step and a value")
        steps, curves, notes = table.finish()
        return [Run(source.path, self.name, steps, curves, tuple(notes))]


def _fits(row: list[str]) -> bool:
    return len(row) == 2 and text_step(row[0]) is not None and as_number(row[1].replace(",", ".")) is not None


def _cells(line: str) -> list[str]:
    text = line.strip()
    return [cell for cell in _SPLIT.split(text) if cell] if " " in text or "\t" in text or ";" in text else text.split(",")


READER = ColumnsReader()
