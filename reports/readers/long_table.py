"""Tables of one value a row: run, metric, step, value (MLflow's CSV download, and what a person writes out of a database)."""

from __future__ import annotations

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_number, text_step
from reports.readers.delimited import check_header
from reports.readers.names import names, pick_step
from reports.readers.notes import Notes
from reports.readers.records import StepTable
from reports.readers.tables import Numbers, Rows, header_of

KEYS = ("key", "metric", "metric_name", "name", "tag")


class LongTableReader:
    name = "long-table"
    priority = 55

    def sniff(self, source: Source) -> bool:
        found = None if source.is_dir else header_of(source)
        return found is not None and _places(found[1], None) is not None

    def read(self, source: Source, how: Reading) -> list[Run]:
        found = header_of(source)
        places = _places(found[1], how.step) if found else None
        if found is None or places is None:
            raise UnreadableRun(source.path, f"not a table with columns for step, value and one of {', '.join(KEYS)}")
        delimiter, header = found
        check_header(source, header)
        rows, numbers = Rows(source, Notes(), delimiter, header), Numbers(source)
        at_step, at_key, at_value = places
        declared = names(how.table)
        keys = [i for i, name in enumerate(header) if name.lower() in declared.runs and i not in places]
        clock = next((i for i, name in enumerate(header) if name.lower() in declared.clocks), None)
        tables: dict[tuple[str, ...], StepTable] = {}
        for line, cells in rows:
            step = text_step(cells[at_step])
            if step is None or not cells[at_key]:
                rows.notes.add(NoteKind.BROKEN_LINE, f"no whole step ({cells[at_step]!r}) or no metric ({cells[at_key]!r})", f"{source.name}:{line}")
                continue
            table = tables.setdefault(tuple(cells[i] for i in keys), StepTable(source.path))
            table.add(step, {cells[at_key]: numbers.parse(cells[at_value])}, line, as_number(cells[clock]) if clock is not None else None)
        numbers.check()
        if not tables:
            raise UnreadableRun(source.path, "no row holds a step and a metric")
        runs = []
        for key, table in tables.items():
            steps, curves, notes = table.finish()
            part = ",".join(f"{header[i]}={value}" for i, value in zip(keys, key)) if len(tables) > 1 else ""
            runs.append(Run(source.path, self.name, steps, curves, tuple(rows.notes.finish() + notes), part=part))
        return runs


def _places(header: list[str], step: str | None) -> tuple[int, int, int] | None:
    """Positions of the step, the metric's name and the value."""
    lower = [name.lower() for name in header]
    column = pick_step(header, names(), step)
    key = next((lower.index(name) for name in KEYS if name in lower), None)
    if column is None or key is None or "value" not in lower:
        return None
    return header.index(column), key, lower.index("value")


READER = LongTableReader()
