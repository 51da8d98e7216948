"""TensorBoard: one event file, or a folder of them (a restart opens a new file); a folder of folders is one run each."""

from __future__ import annotations

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source
from reports.readers.records import StepTable
from reports.readers.source import DAMAGED
from reports.readers.tfevents import BrokenRecord, masked_crc, records, scalars

MARK = ".tfevents."


class TensorBoardReader:
    name = "tensorboard"
    priority = 15

    def sniff(self, source: Source) -> bool:
        return bool(_runs(source)) if source.is_dir else is_event_file(source.head)

    def read(self, source: Source, how: Reading) -> list[Run]:
        runs = _runs(source) if source.is_dir else {"": [source]}
        if not runs:
            raise UnreadableRun(source.path, "no event file (*.tfevents.*) in it")
        return [self._run(source, part if len(runs) > 1 else "", files) for part, files in runs.items()]

    def _run(self, source: Source, part: str, files: list[Source]) -> Run:
        table = StepTable(source.path)
        for file in sorted(files, key=lambda one: (_first_time(one), one.name)):
            self._read_file(file, table)
        if not len(table):
            raise UnreadableRun(source.path, "its event files hold no scalar")
        steps, curves, notes = table.finish()
        return Run(source.path, self.name, steps, curves, tuple(notes), part=part)

    def _read_file(self, file: Source, table: StepTable) -> None:
        number = 0
        table.name = file.name
        try:
            with file.open() as stream:
                for number, record in enumerate(records(stream), start=1):
                    time, step, found = scalars(record)
                    for tag, value in found:
                        table.add(step, {tag: value}, number, time)
        except (BrokenRecord, *DAMAGED) as error:
            table.notes.add(NoteKind.TORN_LINE, f"record {number + 1}: {error}; nothing behind it is read", file.name)


def is_event_file(head: bytes) -> bool:
    """Whether the first 12 bytes are a record's length with its check sum."""
    return len(head) >= 12 and head[4:8] == b"\0\0\0\0" and masked_crc(head[:8]) == int.from_bytes(head[8:12], "little")


def _runs(folder: Source) -> dict[str, list[Source]]:
    """Event files by run: those in the folder itself, else those of each folder in it."""
    own = [child for child in folder.children() if MARK in child.name and not child.is_dir]
    if own:
        return {"": own}
    below = {child.name: [file for file in child.children() if MARK in file.name and not file.is_dir] for child in folder.children() if child.is_dir}
    return {name: files for name, files in below.items() if files}


def _first_time(file: Source) -> float:
    """When the file was begun: the wall time of its first event."""
    try:
        with file.open() as stream:
            return scalars(next(records(stream), b""))[0]
    except (BrokenRecord, *DAMAGED):
        return 0.0


READER = TensorBoardReader()
