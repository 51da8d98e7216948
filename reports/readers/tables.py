"""Rows of a delimited table, streamed: what is a header, what a torn or ragged row, and whether a comma is a decimal point."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from reports.errors import UnreadableRun
from reports.model import NoteKind
from reports.readers.base import Source, as_number
from reports.readers.notes import Notes

DELIMITERS = ("\t", ";", ",")
MOST_BROKEN = 0.05  # of the rows, and two: above it the file is not the table it seems to be, and a row that fits may fit by chance
NO_LINE_END = "the file ends without a line end, so its last value may be cut: left out (add the line end if it is whole)"
FIXED_DECIMALS, FIXED_ROWS = 6, 20  # a column written as "%.6f" shows it within a few rows; shortest representations differ in length
_COMMA_NUMBER = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_FIXED = re.compile(r"[-+]?\d+[.,](\d{2,})")


def header_of(source: Source) -> tuple[str, list[str]] | None:
    """(delimiter, column names) of the first line that is neither empty nor a comment, or None where it is no header of two columns or more."""
    first = next((line for line in source.head_text.splitlines() if line.strip() and not line.startswith("#")), "")
    for delimiter in DELIMITERS:
        if delimiter not in first:
            continue
        try:
            cells = next(csv.reader([first], delimiter=delimiter, strict=True))
        except csv.Error:
            return None
        cells = [cell.strip() for cell in cells]
        if len(cells) > 1 and all(as_number(cell) is None for cell in cells):
            return delimiter, cells
    return None


def too_many(broken: int, good: int) -> bool:
    return broken > max(2, MOST_BROKEN * (good + broken)) or (broken > 0 and not good)


@dataclass
class Numbers:
    """Cells as numbers. A comma is taken for a decimal point, and `check` refuses afterwards unless the whole file shows that it is one."""

    source: Source
    comma: str = ""  # the first cell with one
    proof: bool = False  # a cell that cannot be a group of thousands: 0,5 or 12,25
    point: str = ""  # the first cell with a decimal point

    def parse(self, cell: str) -> float | str:
        """The number, or the text where it is none (empty: missing)."""
        number = as_number(cell)
        if number is not None:
            if "." in cell and not self.point:
                self.point = cell
            return number
        text = cell.strip()
        if "," not in text or not _COMMA_NUMBER.fullmatch(text):
            if _THOUSANDS.fullmatch(text):
                self.comma = self.comma or text  # 1,234,567: no decimal comma, so the file is refused as a whole
                self.point = self.point or text
            return text
        self.comma = self.comma or text
        self.proof = self.proof or not _THOUSANDS.fullmatch(text)
        return float(text.replace(",", "."))

    def check(self) -> None:
        if self.comma and self.point:
            words = f"{self.comma!r} and {self.point!r} stand in one table: which of comma and point is the decimal sign is not known"
            raise UnreadableRun(self.source.path, words)
        if self.comma and not self.proof:
            raise UnreadableRun(self.source.path, f"{self.comma!r} may be a decimal number or thousands: write it with a decimal point")


@dataclass
class Rows:
    """The rows under a header. Ragged rows are noted and left out; so is the last value of a file that ends without a line end, which may be cut."""

    source: Source
    notes: Notes
    delimiter: str
    header: list[str]
    good: int = 0
    broken: int = 0
    _ended: bool = True
    _line: int = 0
    _decimals: set[int] = field(default_factory=set)
    _before: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, cells), as many as the header has."""
        reader = csv.reader(self._texts(), delimiter=self.delimiter, strict=True)
        seen_header = False
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                self._break(f"not a row of a table ({error})")
                continue
            if cells is None:
                break
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if cells == self.header:
                if seen_header:
                    self.notes.add(NoteKind.DUPLICATE, "the header stands here again", f"{self.source.name}:{self._line}")
                seen_header = True
                continue
            if len(cells) != len(self.header):
                self._break(f"{len(cells)} cells under {len(self.header)} columns")
                continue
            if sum(as_number(cell) is None for cell in cells if cell) == len(cells):
                raise UnreadableRun(self.source.path, f"line {self._line}: a second header, {', '.join(cells[:4])} …: two tables in one file")
            if not self.good and not self._ended:
                self._break(NO_LINE_END)  # the only row, and cut somewhere: nothing shows that its cells stand where they should
                continue
            if not self._ended and not self._alike(cells):
                self._break("the last line has no line end and is not written as the one before it")
                continue
            self.good += 1
            self._before = cells
            yield self._line, self._whole(cells)
        if too_many(self.broken, self.good):
            raise UnreadableRun(self.source.path, f"{self.broken} of {self.good + self.broken} rows do not have the {len(self.header)} columns of the header")

    def _texts(self) -> Iterator[str]:
        for number, text, ended in self.source.lines(self.notes):
            self._line, self._ended = number, ended
            if number == 1:
                text = text.lstrip("\ufeff")
            if not text.startswith("#"):
                yield text + "\n"

    def _break(self, words: str) -> None:
        self.broken += 1
        self.notes.add(NoteKind.BROKEN_LINE if self._ended else NoteKind.TORN_LINE, words, f"{self.source.name}:{self._line}")

    def _alike(self, cells: list[str]) -> bool:
        """Whether decimal signs stand in the same columns as in the row before: a cut row may have as many cells as the header by chance."""
        return all(not old or not new or ("." in old) == ("." in new) for old, new in zip(self._before[:-1], cells[:-1]))

    def _whole(self, cells: list[str]) -> list[str]:
        """The cells; the last one emptied where the file stops in it, unless every row so far wrote it with the same number of decimals."""
        last = _FIXED.fullmatch(cells[-1])
        if self._ended:
            if cells[-1]:
                self._decimals.add(len(last[1]) if last else -1)
            return cells
        if not cells[-1] or (last and len(last[1]) <= FIXED_DECIMALS and self._decimals == {len(last[1])} and self.good > FIXED_ROWS):
            return cells
        self.notes.add(NoteKind.TORN_LINE, f"{NO_LINE_END}: {cells[-1]!r}", f"{self.source.name}:{self._line}")
        return [*cells[:-1], ""]
