"""The end of a session: the verdict table, the report, the exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matrix.outcome import Disposition, Outcome, most_severe
from matrix.status import title

BLOCKING = frozenset({Disposition.REQUIRED, Disposition.STALE})


def exit_code(verdicts: Iterable[Mapping[str, Any]]) -> int:
    """That of the most severe outcome among the cells that block; quarantined and experimental cells never set it, except where nothing ran at all: that is
    NOT_RUN, and no success of whatever kind."""
    known = [(Outcome(verdict["outcome"]), Disposition(verdict["disposition"])) for verdict in verdicts if verdict["outcome"] is not None]
    blocking = [outcome for outcome, disposition in known if disposition in BLOCKING]
    if known and all(outcome is Outcome.NOT_RUN for outcome, _ in known):
        return Outcome.NOT_RUN.exit_code
    return most_severe(blocking).exit_code if blocking else 0


def table(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per cell: id, outcome, seeds, time, and what the outcome rests on."""
    rows = []
    for verdict in sorted(verdicts, key=lambda verdict: str(verdict["cell"])):
        outcome = title(verdict["outcome"], verdict["evidence"]) if verdict["outcome"] else "not judged"
        note = "" if Disposition(verdict["disposition"]) is Disposition.REQUIRED else f" ({verdict['disposition']})"
        seeds = ",".join(str(seed) for seed in verdict["seeds"]) or "none"
        rows.append(
            (str(verdict["cell"]), f"{outcome}{note}", f"seeds {seeds}", f"{verdict['seconds']:.0f} s", verdict["reasons"][0] if verdict["reasons"] else "")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths)), row[4]]).rstrip() for row in rows]


def write_report(root: Path, directory: Path, matrix_root: Path | None = None) -> str:
    """Write the HTML page of a results root. Returns the line that says where it is."""
    from e2e.verdict import page

    return f"report: {page(root, directory, matrix_root)}"
