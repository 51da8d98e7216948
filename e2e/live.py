"""Live progress of runs: one moving line on a terminal, a plain line every few seconds anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

from e2e.follow import Progress

PLAIN_EVERY_S = 5.0


@dataclass(frozen=True)
class RunTitle:
    """What a progress line begins with."""

    cell: str
    seed: int
    attempt: int = 1

    def __str__(self) -> str:
        return f"{self.cell} seed {self.seed}" + (f" attempt {self.attempt}" if self.attempt > 1 else "")


class Display(Protocol):
    """Where progress is shown."""

    def update(self, title: RunTitle, progress: Progress, elapsed_s: float) -> None: ...

    def say(self, text: str) -> None: ...


def describe(title: RunTitle, progress: Progress, elapsed_s: float) -> str:
    """One line: cell, seed, step, reward so far, speed, time left."""
    if not progress.done:
        return f"{title}  {progress.stage}, {elapsed_s:.0f} s"
    parts = [f"{title}  step {progress.done}/{progress.planned}"]
    if progress.reward is not None:
        parts.append(f"reward {progress.reward:.3f}")
    if progress.seconds_per_step is not None and progress.seconds_left is not None:
        parts.append(f"{progress.seconds_per_step:.2f} s/step")
        parts.append(f"{_clock(progress.seconds_left)} left")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class PlainDisplay:
    """Lines on a stream that is no terminal: a log, a CI job, an xdist worker."""

    def __init__(self, stream: TextIO | None = None, every_s: float = PLAIN_EVERY_S):
        self.stream = stream or sys.stderr
        self.every_s = every_s
        self._last = 0.0

    def update(self, title: RunTitle, progress: Progress, elapsed_s: float) -> None:
        now = time.monotonic()
        if now - self._last >= self.every_s:
            self._last = now
            self.say(describe(title, progress, elapsed_s))

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class TerminalDisplay:
    """One line at the bottom of a terminal, drawn over by rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self.bars = Bars(TextColumn("{task.description}"), BarColumn(bar_width=24), console=Console(file=sys.stderr), transient=True)
        self.bars.start()
        self._tasks: dict[str, object] = {}

    def update(self, title: RunTitle, progress: Progress, elapsed_s: float) -> None:
        name = str(title)
        if name not in self._tasks:
            for task in self.bars.task_ids:
                self.bars.remove_task(task)
            self._tasks[name] = self.bars.add_task(name, total=progress.planned)
        task = next(task for task in self.bars.task_ids if task == self._tasks[name])
        self.bars.update(task, completed=progress.done, description=describe(title, progress, elapsed_s))

    def say(self, text: str) -> None:
        self.bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self.bars.stop()


@contextmanager
def display(stream: TextIO | None = None) -> Iterator[Display]:
    """The display that fits: moving on a terminal, plain elsewhere or when `stream` is given."""
    if stream is None and sys.stderr.isatty():
        terminal = TerminalDisplay()
        try:
            yield terminal
        finally:
            terminal.close()
    else:
        yield PlainDisplay(stream)
