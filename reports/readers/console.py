"""Console logs of slime, vime, verl, TRL, OpenRLHF, Megatron and the like: records between other lines, behind Ray prefixes, colours and progress bars.

step:12 - actor/entropy:0.4 - critic/score/mean:0.41          verl
rollout 12: {'rollout/raw_reward': 0.41, ...}                  slime, vime ("step 12:", "eval 12:", "Global step 12:")
 12%|█▏ | 12/100 [00:10<..] {'loss': 0.4, 'epoch': 0.1}        Hugging Face, TRL: the step is the progress bar's
 iteration  12/ 100 | lm loss: 1.09E+01 | grad norm: 1.2 |     Megatron
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from reports.errors import UnreadableRun
from reports.model import NoteKind, Run
from reports.readers.base import Reading, Source, as_step, named_value
from reports.readers.console_lines import ANSI, bar_of, dict_of, megatron_of, pairs_of
from reports.readers.hf_trainer import SUMMARY
from reports.readers.names import Names, names
from reports.readers.records import StepTable

_LABELLED = re.compile(
    r"(?:^|[\s\]:|✨-])(?:global[ _]?step|train[ _]?step|step|rollout|iteration|perf|eval|passrate|train)[ =]?\s*(\d{1,15})\s*[:,-]?\s*(\{.*)$", re.I
)
_PAIRS = re.compile(r"(?:^|[\s\]>|)-])((?:global_)?step\s*:\s*\d+\s+(?:-\s+|\s).*)$", re.I)
_MEGATRON = re.compile(r"iteration\s+(\d{1,15})\s*/\s*(\d{1,15})\s*\|(.*)$")
_ALMOST = re.compile(r"(?:global_)?step\s*:\s*\d+.*[:=]")
STEP_KEYS = ("step", "global_step", "train/step", "rollout/step", "training/global_step", "eval/step")


class ConsoleReader:
    name = "console"
    priority = 90

    def sniff(self, source: Source) -> bool:
        return not source.is_dir and bool(source.head) and source.head_text.count("\0") < len(source.head_text) / 100

    def read(self, source: Source, how: Reading) -> list[Run]:
        log = _Log(source, how)
        for line, text, ended in source.lines(log.table.notes):
            log.line(line, text, ended)
        return [log.finish(self.name)]


class _Log:
    """One pass over a log."""

    def __init__(self, source: Source, how: Reading) -> None:
        self.source, self.how = source, how
        self.table = StepTable(source.path)
        self.names: Names = names(how.table)
        self.bars: dict[int, int] = {}  # total of a progress bar -> its latest count
        self.main: int | None = None  # total of the bar that counts training steps
        self.unplaced = 0
        self.bar_steps: dict[str, list[int]] = {}
        self.planned: set[int] = set()

    def line(self, number: int, text: str, ended: bool) -> None:
        if not ("{" in text or "tep" in text or "TEP" in text or "iteration" in text or (" [" in text and "/" in text)):
            return  # most lines of most logs
        if "\x1b" in text:
            text = ANSI.sub("", text)
        for part in text.split("\r") if "\r" in text else (text,):
            bar = bar_of(part)
            if bar is not None:
                self.bars[bar[1]] = bar[0]
                self.last_total = bar[1]
            if "{" in part:
                self._dict(number, part, ended)
            elif "iteration" in part and (match := _MEGATRON.search(part)):
                self.planned.add(int(match[2]))
                self._add(int(match[1]), megatron_of(match[3], ended), number, part)
            elif ":" in part and "tep" in part.lower():
                match = _PAIRS.search(part)
                if match is None and _ALMOST.search(part):
                    self.table.notes.add(NoteKind.BROKEN_LINE, f"looks like a record and is none: {part.strip()[:60]!r}", self._at(number))
                elif match is not None:
                    self._pairs(match[1], number, ended)

    def _pairs(self, text: str, number: int, ended: bool) -> None:
        found = pairs_of(text, ended)
        if found is not None:
            self._add(found[0], found[1], number, text)
        elif re.search(r"\S:\s*[-+]?\d", text.partition(" ")[2]):
            self.table.notes.add(NoteKind.BROKEN_LINE, f"looks like a record and is none: {text.strip()[:60]!r}", self._at(number))

    def _dict(self, number: int, part: str, ended: bool) -> None:
        match = _LABELLED.search(part)
        text = match[2] if match else part[part.index("{") :]
        values = dict_of(text)
        if values is None:
            if match or _looks_like_metrics(text):
                self.table.notes.add(NoteKind.TORN_LINE if not ended else NoteKind.BROKEN_LINE, f"not a whole record: {text[:60]!r}", self._at(number))
            return
        if match:
            self._add(int(match[1]), values, number, part)
        elif any(isinstance(value, float) for value in values.values()):
            self._unlabelled(values, number)

    def _unlabelled(self, values: dict[str, Any], number: int) -> None:
        """A dict without a label: its own step key, else the progress bar's count, else (if the caller says so) its position."""
        if "train_runtime" in values:
            values = {name: value for name, value in values.items() if name not in SUMMARY}
        own = next((step for key in STEP_KEYS if isinstance(values.get(key), float) and (step := as_step(values[key])) is not None), None)
        if own is not None and self.how.step != "order":
            self._add(own, values, number, "")
        elif self.how.step == "order":
            self._add(len(self.table) + (not any(name.startswith("eval_") for name in values)), values, number, "")
        elif self.bars:
            self._by_bar(values, number)
        else:
            self.unplaced += 1

    def _by_bar(self, values: dict[str, Any], number: int) -> None:
        if self.main is None:
            if any(name.startswith("eval_") for name in values):
                self.unplaced += 1
                return
            self.main = self.last_total
        step = self.bars.get(self.main, 0)
        kind = "eval" if any(name.startswith("eval_") for name in values) else "train"
        if any(not isinstance(value, float) or name != "epoch" for name, value in values.items()):
            self.bar_steps.setdefault(kind, []).append(step)
            self._add(step, values, number, "")

    def _add(self, step: int, values: dict[str, Any] | None, number: int, part: str) -> None:
        if not values:
            self.table.notes.add(NoteKind.BROKEN_LINE, f"not a whole record: {part.strip()[:60]!r}", self._at(number))
            return
        values = named_value(values) or values
        left = {name: value for name, value in values.items() if name not in STEP_KEYS and name.lower() not in self.names.bookkeeping}
        if left:
            self.table.add(step, left, number)

    def _at(self, number: int) -> str:
        return f"{self.source.name}:{number}"

    def finish(self, format: str) -> Run:
        if self.unplaced and not len(self.table):
            raise UnreadableRun(
                self.source.path, f"{self.unplaced} records name no step and stand beside no progress bar: --step order numbers them by position"
            )
        if not len(self.table):
            raise UnreadableRun(self.source.path, "no line of it is a record with a step")
        for kind, at in self.bar_steps.items():
            self._regular(kind, at)
        if self.bar_steps:
            self.table.notes.add(NoteKind.ASSUMED, f"steps are the count of the progress bar of {self.main}", self.source.name)
            self.planned.add(self.main or 0)
        steps, curves, notes = self.table.finish()
        planned = next(iter(self.planned)) if len(self.planned) == 1 else 0
        return Run(self.source.path, format, steps, curves, tuple(notes), {"planned_steps": planned} if planned else {})

    def _regular(self, kind: str, at: list[int]) -> None:
        """A progress bar is drawn late at times; its counts are believed only where they rise by one and the same number."""
        gaps = {later - earlier for earlier, later in pairwise(at) if later != earlier or kind == "train"}
        if 0 in gaps or len(gaps) > 1:
            words = f"the progress bar's counts beside the {kind} records do not rise evenly (by {', '.join(map(str, sorted(gaps)[:4]))})"
            raise UnreadableRun(self.source.path, f"{words}: read trainer_state.json instead, or number the records by position with --step order")


def _looks_like_metrics(text: str) -> bool:
    return re.match(r"\{\s*['\"][\w/ .-]+['\"]\s*:\s*['\"]?[-+]?\d", text) is not None


READER = ConsoleReader()
