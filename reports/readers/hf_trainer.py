"""Hugging Face's trainer_state.json (or a checkpoint folder that holds one): log_history, max_steps."""

from __future__ import annotations

from typing import Any

from reports.errors import UnreadableRun
from reports.model import Run
from reports.readers.base import Reading, Source, as_step
from reports.readers.records import StepTable
from reports.readers.trl_reference import add_record, in_order

FILE = "trainer_state.json"
# Written once at the end: means over the whole training, and no values of the last step.
SUMMARY = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss")


class HfTrainerReader:
    name = "hf-trainer"
    priority = 23

    def sniff(self, source: Source) -> bool:
        file = _file(source)
        return file is not None and isinstance(file.document, dict) and isinstance(file.document.get("log_history"), list)

    def read(self, source: Source, how: Reading) -> list[Run]:
        file = _file(source)
        document: Any = file.document if file is not None else None
        if file is None or not isinstance(document, dict) or not isinstance(document.get("log_history"), list):
            raise UnreadableRun(source.path, f"not a whole {FILE} with a log_history")
        table = StepTable(source.path, file.name)
        in_order(source, document["log_history"])
        for position, record in enumerate(document["log_history"], start=1):
            if isinstance(record, dict):
                add_record(table, record, position, SUMMARY if "train_runtime" in record else ())
        if not len(table):
            raise UnreadableRun(source.path, "its log_history holds no step")
        steps, curves, notes = table.finish()
        planned = as_step(document.get("max_steps"))
        return [Run(source.path, self.name, steps, curves, tuple(notes), {"planned_steps": planned} if planned else {})]


def _file(source: Source) -> Source | None:
    return source.child(FILE) if source.is_dir else source


READER = HfTrainerReader()
