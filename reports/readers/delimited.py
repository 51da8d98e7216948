"""CSV and TSV with a header: one row a step, one column a metric; several runs where a column such as `run` or `seed` tells them apart."""

from __future__ import annotations

from typing import Any

from reports.errors import ReportError, UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, as_step, text_step
from reports.readers.names import Names, names, pick_step
from reports.readers.notes import Notes
from reports.readers.records import StepTable
from reports.readers.tables import Numbers, Rows, header_of


class DelimitedReader:
    name = "csv"
    priority = 60

    def sniff(self, source: Source) -> bool:
        found = None if source.is_dir else header_of(source)
        return found is not None and pick_step(found[1], names(), None) is not None

    def read(self, source: Source, how: Reading) -> list[Run]:
        found = header_of(source)
        if found is None:
            raise UnreadableRun(source.path, "its first line is no header of a table with comma, semicolon or tab")
        delimiter, header = found
        check_header(source, header)
        declared = names(how.table)
        step_column = pick_step(header, declared, None if how.step == "order" else how.step)
        if step_column is None and how.step != "order":
            raise ReportError(f"{source.path}: no column {how.step or 'step'!r}; --step takes one of {', '.join(header)}")
        notes = Notes()
        if step_column is not None and step_column.lower() in declared.counts:
            notes.add(NoteKind.ASSUMED, f"steps are counted by {step_column!r}: --step NAME takes another", source.name)
        return self._runs(source, Rows(source, notes, delimiter, header), step_column, declared)

    def _runs(self, source: Source, rows: Rows, step_column: str | None, declared: Names) -> list[Run]:
        header, numbers = rows.header, Numbers(source)
        at = header.index(step_column) if step_column is not None else None
        keys = [i for i, name in enumerate(header) if name.lower() in declared.runs and i != at]
        clock = next((header_index for name in declared.clocks for header_index, column in enumerate(header) if column.lower() == name), None)
        skipped = {at, *keys, *(i for i, name in enumerate(header) if name.lower() in declared.bookkeeping)}
        metrics = [(i, name) for i, name in enumerate(header) if i not in skipped and name]
        tables: dict[tuple[str, ...], StepTable] = {}
        planned: set[float | None] = set()
        total = next((i for i, name in enumerate(header) if name.lower() == "total_steps"), None)
        for line, cells in rows:
            table = tables.setdefault(tuple(cells[i] for i in keys), StepTable(source.path))
            step = len(table) if at is None else text_step(cells[at])
            if step is None:
                rows.notes.add(NoteKind.BROKEN_LINE, f"no whole step: {cells[at or 0]!r}", f"{source.name}:{line}")
                continue
            row = {name: numbers.parse(cells[i]) for i, name in metrics}
            table.add(step, row, line, as_number(cells[clock]) if clock is not None else None)
            if total is not None:
                planned.add(as_number(cells[total]))
        numbers.check()
        whole = {key: table for key, table in tables.items() if len(table)}
        if not whole:
            raise UnreadableRun(source.path, "no row holds a step")
        steps = as_step(planned.pop()) if len(planned) == 1 else None
        manifest = {"planned_steps": steps} if steps else {}
        return [self._run(source, table, [header[i] for i in keys], key, manifest, rows.notes, len(whole) > 1) for key, table in whole.items()]

    def _run(self, source: Source, table: StepTable, columns: list[str], key: tuple[str, ...], manifest: dict[str, Any], notes: Notes, several: bool) -> Run:
        steps, curves, found = table.finish()
        known = dict(zip(columns, key))
        seed = next((text_step(value) for column, value in known.items() if column.lower() == "seed"), None)
        part = ",".join(f"{column}={value}" for column, value in known.items()) if several else ""
        own = manifest | ({"seed": seed} if seed is not None else {})
        return Run(source.path, self.name, steps, curves, tuple(notes.finish() + found), own, part=part)


def check_header(source: Source, header: list[str]) -> None:
    """Raises UnreadableRun for a column name that occurs twice."""
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise UnreadableRun(source.path, f"column {twice[0]!r} occurs twice: rename or remove one of them")


READER = DelimitedReader()
