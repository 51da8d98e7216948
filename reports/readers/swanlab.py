"""SwanLab: its CSV export, the JSON of `swanlab api run metrics`, and the folder an offline run leaves (logs/<metric>/*.log).

In the CSV the column `<experiment>-<metric>_step` holds the metric's value, whatever its name says, and `…_timestamp` beside it when it was logged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_step, text_step
from reports.readers.delimited import check_header
from reports.readers.names import names
from reports.readers.notes import Notes
from reports.readers.records import StepTable, json_lines
from reports.readers.tables import Numbers, Rows, header_of

VALUE, TIME = "_step", "_timestamp"


class SwanLabReader:
    name = "swanlab"
    priority = 54

    def sniff(self, source: Source) -> bool:
        if source.is_dir:
            return source.child("logs") is not None and bool(_log_files(source))
        found = header_of(source)
        return bool(found and _columns(found[1])) or bool(_entries(source.document))

    def read(self, source: Source, how: Reading) -> list[Run]:
        if source.is_dir:
            return [self._folder(source)]
        entries = _entries(source.document)
        if entries:
            return [self._json(source, entries)]
        found = header_of(source)
        if not found or not _columns(found[1]):
            raise UnreadableRun(source.path, f"not a SwanLab export: step, then columns called experiment-metric{VALUE} and …{TIME}")
        return self._csv(source, *found, how)

    def _csv(self, source: Source, delimiter: str, header: list[str], how: Reading) -> list[Run]:
        check_header(source, header)
        columns = split_names([name.removesuffix(VALUE) for name in _columns(header)], set(names(how.table).ours))
        where = {header.index(base + VALUE): place for base, place in columns.items()}
        rows, numbers = Rows(source, Notes(), delimiter, header), Numbers(source)
        tables = {experiment: StepTable(source.path) for experiment, _ in columns.values()}
        for line, cells in rows:
            step = text_step(cells[0])
            if step is None:
                rows.notes.add(NoteKind.BROKEN_LINE, f"no whole step: {cells[0]!r}", f"{source.name}:{line}")
                continue
            for at, (experiment, metric) in where.items():
                if cells[at]:
                    tables[experiment].add(step, {metric: numbers.parse(cells[at])}, line)
        numbers.check()
        whole = {experiment: table for experiment, table in tables.items() if len(table)}
        if not whole:
            raise UnreadableRun(source.path, "no cell of it holds a value")
        runs = []
        for experiment, table in whole.items():
            steps, curves, notes = table.finish()
            runs.append(Run(source.path, self.name, steps, curves, tuple(rows.notes.finish() + notes), part=experiment if len(whole) > 1 else ""))
        return runs

    def _json(self, source: Source, entries: list[dict[str, Any]]) -> Run:
        table = StepTable(source.path)
        for entry in entries:
            for point in entry["metrics"]:
                step = as_step(point.get("step", point.get("index")))
                if step is None:
                    table.notes.add(NoteKind.BROKEN_LINE, f"{entry['key']}: no whole step in {str(point)[:60]}", source.name)
                    continue
                table.add(step, {str(entry["key"]): point.get("value", point.get("data"))}, 0)
        return self._run(source, table)

    def _folder(self, source: Source) -> Run:
        table = StepTable(source.path)
        for metric, file in _log_files(source):
            table.name = metric
            for line, record in json_lines(file, table.notes):
                step = as_step(record.get("index", record.get("step")))
                if step is None:
                    table.notes.add(NoteKind.BROKEN_LINE, f"no whole index: {record.get('index')!r}", f"{metric}:{line}")
                    continue
                table.add(step, {metric: record.get("data")}, line)
        return self._run(source, table)

    def _run(self, source: Source, table: StepTable) -> Run:
        if not len(table):
            raise UnreadableRun(source.path, "no point of it has a step")
        steps, curves, notes = table.finish()
        return Run(source.path, self.name, steps, curves, tuple(notes))


def _columns(header: list[str]) -> list[str]:
    """The value columns, where every column but the first is a value or its time."""
    values = [name for name in header[1:] if name.endswith(VALUE)]
    fits = header[0].lower() == "step" and bool(values) and len(header) > len(values) + 1
    return values if fits and all(name.endswith((VALUE, TIME)) for name in header[1:]) else []


def split_names(columns: list[str], known: set[str]) -> dict[str, tuple[str, str]]:
    """`experiment-metric` -> (experiment, metric). Both may hold dashes: what columns share, or the table knows, tells them apart; else the last dash."""
    tails = {column: [column[i + 1 :] for i, sign in enumerate(column) if sign == "-"] for column in columns}
    shared = set.intersection(*(set(tail) for tail in tails.values())) if len(columns) > 1 else set()
    one = max(shared, key=len, default=None)  # several experiments, one metric
    prefix = _common_prefix(columns) if one is None and len(columns) > 1 else ""
    found = {}
    for column in columns:
        metric = one or (column[len(prefix) :] if prefix else next((tail for tail in tails[column] if tail.lower() in known), column.rpartition("-")[2]))
        found[column] = (column[: len(column) - len(metric)].rstrip("-"), metric)
    return found


def _common_prefix(columns: list[str]) -> str:
    """What all columns begin with, up to a dash."""
    shortest = min(columns, key=len)
    length = next((i for i, sign in enumerate(shortest) if any(column[i] != sign for column in columns)), len(shortest))
    return shortest[: shortest.rfind("-", 0, length) + 1]


def _entries(document: Any) -> list[dict[str, Any]]:
    """[{key, metrics: [{step, value}]}] of the interface's answer, or of the `data` of one."""
    if isinstance(document, dict) and isinstance(document.get("data"), dict):
        document = document["data"]
    entries = document.get("list") if isinstance(document, dict) else None
    good = isinstance(entries, list) and bool(entries) and all(isinstance(e, dict) and isinstance(e.get("metrics"), list) and e.get("key") for e in entries)
    return [entry for entry in entries if all(isinstance(point, dict) for point in entry["metrics"])] if good and isinstance(entries, list) else []


def _log_files(folder: Source) -> list[tuple[str, Source]]:
    """(metric, file) of an offline run: logs/<metric, quoted>/<number>.log, in the order they were written."""
    logs = folder.child("logs")
    return list(_files(logs)) if logs is not None and logs.is_dir else []


def _files(logs: Source) -> Iterator[tuple[str, Source]]:
    for tag in logs.children():
        if tag.is_dir:
            files = [file for file in tag.children() if file.name.endswith(".log")]
            yield from ((unquote(tag.name), file) for file in sorted(files, key=lambda file: (len(file.name), file.name)))


READER = SwanLabReader()
