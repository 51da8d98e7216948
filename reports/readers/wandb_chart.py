"""W&B's chart export: "Step", then for each run `name - metric` with `…__MIN` and `…__MAX`, cells empty where a run has no value.

The extremes are left out. A cell whose extremes differ from it is a mean over runs or over steps, and the result says so.
"""

from __future__ import annotations

from collections import Counter

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, text_step
from reports.readers.delimited import check_header
from reports.readers.names import names, pick_step
from reports.readers.notes import Notes
from reports.readers.records import StepTable
from reports.readers.tables import Numbers, Rows, header_of

EXTREMES = ("__MIN", "__MAX")
BETWEEN = " - "


class WandbChartReader:
    name = "wandb-chart"
    priority = 56

    def sniff(self, source: Source) -> bool:
        found = None if source.is_dir else header_of(source)
        return found is not None and bool(_columns(found[1])) and pick_step(found[1][:1], names(), None) is not None

    def read(self, source: Source, how: Reading) -> list[Run]:
        found = header_of(source)
        if found is None or not _columns(found[1]):
            raise UnreadableRun(source.path, 'not a chart export: "Step", then columns called "run - metric"')
        delimiter, header = found
        check_header(source, header)
        rows, numbers, columns = Rows(source, Notes(), delimiter, header), Numbers(source), _columns(header)
        where = {name: i for i, name in enumerate(header)}
        tables: dict[str, StepTable] = {run: StepTable(source.path) for run, _ in columns.values()}
        means: Counter[str] = Counter()
        for line, cells in rows:
            step = text_step(cells[0])
            if step is None:
                rows.notes.add(NoteKind.BROKEN_LINE, f"no whole step: {cells[0]!r}", f"{source.name}:{line}")
                continue
            for column, (run, metric) in columns.items():
                cell = cells[where[column]]
                if cell:
                    tables[run].add(step, {metric: numbers.parse(cell)}, line)
                    means[run] += any(column + end in where and _differs(cell, cells[where[column + end]]) for end in EXTREMES)
        numbers.check()
        whole = {run: table for run, table in tables.items() if len(table)}
        if not whole:
            raise UnreadableRun(source.path, "no cell of it holds a value")
        return [self._run(source, run, table, rows.notes, means[run], len(whole) > 1) for run, table in whole.items()]

    def _run(self, source: Source, run: str, table: StepTable, notes: Notes, means: int, several: bool) -> Run:
        if means:
            table.notes.add(NoteKind.AGGREGATE, f"{run}: {means} value(s) are means over runs or steps (their minimum and maximum differ)", source.name)
        steps, curves, found = table.finish()
        return Run(source.path, self.name, steps, curves, tuple(notes.finish() + found), {"run_name": run}, part=run if several else "")


def _columns(header: list[str]) -> dict[str, tuple[str, str]]:
    """Column -> (run, metric) of the value columns; empty where a column is called otherwise."""
    values = [name for name in header[1:] if not name.endswith(EXTREMES)]
    if not values or not all(BETWEEN in name for name in values):
        return {}
    split = {name: tuple(name.rsplit(BETWEEN, 1)) for name in values}
    return {name: (run, metric) for name, (run, metric) in split.items() if metric != "_step"}


def _differs(cell: str, extreme: str) -> bool:
    value, end = as_number(cell), as_number(extreme)
    return value is not None and end is not None and value != end


READER = WandbChartReader()
