"""The verdict of a cell: what `reports` says of its runs, or why there is nothing to judge. Kept as <root>/<cell key>/verdicts/<time>.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.loader import DeclaredCell, Matrix
from matrix.outcome import Outcome, most_severe
from matrix.resolver import baseline_directory, science_hash

if TYPE_CHECKING:
    from reports.verdict import Declared, Verdict


@dataclass(frozen=True)
class CellVerdict:
    """`outcome` is None when the runs were made and not judged."""

    cell: str
    outcome: Outcome | None
    reasons: tuple[str, ...]
    seeds: tuple[int, ...]
    path: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Unfinished:
    """A run that did not reach its end: what that makes of the cell, at least, and why."""

    seed: int
    outcome: Outcome
    reason: str
    steps: int


# (matrix, cell, results root, seeds, looks done before, runs that did not finish) -> verdict
JudgeCell = Callable[[Matrix, DeclaredCell, Path, tuple[int, ...], int, Sequence[Unfinished]], CellVerdict]


def judge_cell(
    matrix: Matrix, cell: DeclaredCell, root: Path, seeds: tuple[int, ...], looks_done: int = 0, unfinished: Sequence[Unfinished] = ()
) -> CellVerdict:
    """Judge the runs of `seeds` by the cell's recipe against the baseline of its science, and write the verdict.

    A run that did not finish is judged too where it recorded a step (its curve may show why), but the cell is never better than its ending.
    """
    from reports.judge import judge

    if unfinished and not any(run.steps for run in unfinished):
        return unjudged(matrix, cell, root, unfinished[0].outcome, f"seed {unfinished[0].seed}: {unfinished[0].reason}", seeds)
    runs = [root / cell.key / f"seed-{seed}" for seed in seeds]
    found = judge(runs, baseline_directory(cell, matrix), cell.recipe.value.judge, declared(matrix, cell), looks_done)
    if unfinished:
        endings = [f"seed {run.seed}: {run.reason}" for run in unfinished]
        worst = most_severe([found.outcome, *(run.outcome for run in unfinished)])
        reasons = [*endings, *found.reasons] if worst is not found.outcome or found.outcome is Outcome.INCOMPLETE else [*found.reasons, *endings]
        found = found.model_copy(update={"outcome": worst, "reasons": reasons, "headline": reasons[0]})
    return _keep(cell, root, found, seeds)


def unjudged(matrix: Matrix, cell: DeclaredCell, root: Path, outcome: Outcome, reason: str, seeds: tuple[int, ...] = ()) -> CellVerdict:
    """The verdict of a cell whose runs cannot be judged: none recorded a step, or there is none."""
    from reports.verdict import Verdict

    rule = cell.recipe.value.judge
    return _keep(
        cell,
        root,
        Verdict(outcome=outcome, evidence=rule.evidence, headline=reason, reasons=[reason], declared=declared(matrix, cell), rule=rule, candidates=[]),
        seeds,
    )


def declared(matrix: Matrix, cell: DeclaredCell) -> Declared:
    """What the runs of a cell are held to."""
    from reports.verdict import Declared

    reward = cell.recipe.value.reward
    low, high = reward.range
    return Declared(cell=str(cell), recipe=cell.recipe.value.name, science_hash=science_hash(cell, matrix), reward_id=reward.id, reward_range=(low, high))


def page(root: Path, directory: Path, matrix_root: Path | None = None) -> Path:
    """Write the HTML page of a results root; returns the file to open."""
    from reports.page import write

    return write(root, directory, matrix_root=matrix_root)


def _keep(cell: DeclaredCell, root: Path, verdict: Verdict, seeds: tuple[int, ...]) -> CellVerdict:
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.{time.time_ns() % 1_000_000_000:09d}Z.json"
    path = verdict.write(root / cell.key / "verdicts" / name)
    return CellVerdict(str(cell), verdict.outcome, tuple(verdict.reasons), seeds, str(path))
