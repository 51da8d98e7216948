"""The verdict of a cell: what `reports` says of its runs, or why there is nothing to judge. Kept as <root>/<cell key>/verdicts/<time>.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.declarations import Framework
from matrix.loader import DeclaredCell, Matrix
from matrix.outcome import Disposition, Outcome, most_severe
from matrix.problem import MatrixError
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
    evidence: str = "convergence"  # what kind of evidence the outcome rests on
    stale: bool = False  # the recipe changed since its baseline was recorded
    path: str = ""
    seconds: float = 0.0


def disposition(cell: DeclaredCell, verdict: CellVerdict) -> str:
    """What the cell's outcome means for a gate."""
    return str(Disposition.STALE if verdict.stale and cell.disposition is Disposition.REQUIRED else cell.disposition)


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
    from reports.verdict import Ending

    empty = {run.seed for run in unfinished if not run.steps}
    runs = [root / cell.key / f"seed-{seed}" for seed in seeds if seed not in empty]
    endings = [Ending(outcome=run.outcome, reason=f"seed {run.seed}: {run.reason}") for run in unfinished]
    if not runs:
        worst = most_severe([ending.outcome for ending in endings])
        return unjudged(matrix, cell, root, worst, next(ending.reason for ending in endings if ending.outcome is worst), seeds)
    baseline, rule, claims = baseline_directory(cell, matrix), cell.rule, declared(matrix, cell)
    kept = _keep(cell, root, judge(runs, baseline, rule, claims, looks_done, pool=_pool(matrix, cell), endings=endings), seeds)
    return replace(kept, reasons=(*kept.reasons, claim(cell.framework.value))) if cell.framework else kept


def claim(framework: Framework) -> str:
    """What a verdict over another framework's runs rests on, beside them."""
    return f"run by {framework.title} {framework.version}: that it trains the declared recipe is the declaration's claim"


def _pool(matrix: Matrix, cell: DeclaredCell) -> list[Path]:
    """The baselines of all cells of the recipe, whose spread counts where the rule pools it."""
    if not cell.rule.pooled:
        return []
    family = [other for other in matrix.cells.values() if other.recipe.value.name == cell.recipe.value.name]
    return [folder for folder in dict.fromkeys(baseline_directory(other, matrix) for other in family) if folder.is_dir()]


def unjudged(matrix: Matrix, cell: DeclaredCell, root: Path, outcome: Outcome, reason: str, seeds: tuple[int, ...] = (), *, keep: bool = True) -> CellVerdict:
    """The verdict of a cell whose runs cannot be judged: none recorded a step, or there is none.

    NOT_RUN never stands in front of an outcome: it is kept only where nothing else was judged before, and once for one reason.
    """
    from reports.verdict import Declared, Verdict

    rule = cell.rule
    try:
        held_to = declared(matrix, cell)
    except (MatrixError, OSError):  # the cell's own declarations are at fault: nothing was judged by them
        held_to = Declared(cell=str(cell), recipe=cell.recipe.value.name)
    if not keep or (outcome is Outcome.NOT_RUN and _told_before(root / cell.key, reason)):
        return CellVerdict(str(cell), outcome, (reason,), seeds, rule.evidence)
    return _keep(
        cell,
        root,
        Verdict(outcome=outcome, evidence=rule.evidence, headline=reason, reasons=[reason], declared=held_to, rule=rule, candidates=[]),
        seeds,
    )


def _told_before(folder: Path, reason: str) -> bool:
    from matrix.status import latest

    found = latest(folder)
    return found is not None and (found.outcome is not Outcome.NOT_RUN or found.reasons[:1] == (reason,))


def declared(matrix: Matrix, cell: DeclaredCell) -> Declared:
    """What the runs of a cell are held to."""
    from reports.verdict import Declared

    reward = cell.recipe.value.reward
    low, high = reward.range
    return Declared(cell=str(cell), recipe=cell.recipe.value.name, science_hash=science_hash(cell, matrix), reward_id=reward.id, reward_range=(low, high))


def page(root: Path, directory: Path, matrix_root: Path | None = None) -> Path:
    """Write the HTML page of a results root; returns the file to open."""
    from reports.site import write

    return write(root, directory, matrix_root=matrix_root, png="summary")


def _keep(cell: DeclaredCell, root: Path, verdict: Verdict, seeds: tuple[int, ...]) -> CellVerdict:
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.{time.time_ns() % 1_000_000_000:09d}Z.json"
    path = verdict.write(root / cell.key / "verdicts" / name)
    return CellVerdict(str(cell), verdict.outcome, tuple(verdict.reasons), seeds, verdict.evidence, verdict.stale, str(path))
