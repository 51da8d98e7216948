"""Two columns of numbers without a header, `step value` a line, between them blanks, a tab, a comma or a semicolon."""

from __future__ import annotations

import re

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, text_step
from reports.readers.records import StepTable
from reports.readers.tables import NO_LINE_END, Numbers, too_many

METRIC = "value"  # the file does not say what it holds: --name train/loss=value
_BLANKS, _SIGNS = re.compile(r"\s*[;\t]\s*|,\s+|\s+"), re.compile(r"\s*,\s*")
_SAMPLE = 5


class ColumnsReader:
    name = "columns"
    priority = 70

    def sniff(self, source: Source) -> bool:
        return _split_of(source) is not None

    def read(self, source: Source, how: Reading) -> list[Run]:
        table, numbers = StepTable(source.path), Numbers(source)
        split = _split_of(source) or _BLANKS
        broken = 0
        for line, text, ended in source.lines(table.notes):
            cells = [cell for cell in split.split(text.lstrip("\ufeff").strip()) if cell]
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
        if not len(table) or too_many(broken, len(table)):
            raise UnreadableRun(source.path, f"{broken} of {len(table) + broken} lines are not a step and a value")
        steps, curves, notes = table.finish()
        return [Run(source.path, self.name, steps, curves, tuple(notes))]


def _split_of(source: Source) -> re.Pattern[str] | None:
    """What stands between the two numbers on most of the first lines: found once for the file, or a line that lost its blank would be read at its comma."""
    lines = [] if source.is_dir else [line.strip() for line in source.head_text.splitlines() if line.strip() and not line.startswith("#")][:_SAMPLE]
    return next((split for split in (_BLANKS, _SIGNS) if lines and sum(_fits(split.split(line)) for line in lines) > len(lines) / 2), None)


def _fits(row: list[str]) -> bool:
    return len(row) == 2 and text_step(row[0]) is not None and as_number(row[1].replace(",", ".")) is not None


READER = ColumnsReader()
