"""A local build's last words: each step, its state, its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.local.steps import State

if TYPE_CHECKING:
    from ci.local.executor import Build


STATUS = "vime:status:"


def lines(build: Build) -> list[str]:
    rows = []
    for step in build.steps:
        for job in step.jobs:
            seconds = sum(attempt.seconds for attempt in job.attempts)
            last = job.attempts[-1] if job.attempts else None
            told = [f"{len(job.attempts)} attempts"] if len(job.attempts) > 1 else []
            told += [f"exit {last.exit}"] if last and last.exit else []
            told += [last.note] if last and last.note else []
            rows.append((job.name, str(job.state), f"{seconds:.1f} s", ", ".join(told)))
        if step.kind == "block" and step.state is State.BLOCKED:
            rows.append((step.name, "blocked", "", "waits for a person: --release CELL ticks a cell"))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    table = ["  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths)), row[3]]).rstrip() for row in rows]
    notes = sorted(build.store.annotations.glob("*.md"))
    return ["", *table, "", f"logs, artifacts, annotations: {build.options.folder}", *(f"annotation: {note}" for note in notes), last_words(build)]


def last_words(build: Build) -> str:
    """The build's state, with what its gates said."""
    told = [f"{key.removeprefix(STATUS)}: {text}" for key, text in build.store.meta.items() if key.startswith(STATUS)]
    return f"build {build.state}" + (f" ({'; '.join(told)})" if told else "")
