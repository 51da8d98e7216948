"""A cell's seeds, looks and verdict; the judge is `reports`, the baseline is made of fake runs by the documented command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from e2e.cell_run import Options, run_cell
from e2e.faults import FAULTS, named, plant
from e2e.live import PlainDisplay
from e2e.verdict import CellVerdict, Unfinished
from matrix.loader import DeclaredCell, Matrix
from matrix.outcome import Outcome
from matrix.problem import SelectionError
from tests.matrix.tree import CELL

QUIET = PlainDisplay(StringIO())


class Judge:
    """Says what it is told, one outcome a look, and remembers what it was asked."""

    def __init__(self, *outcomes: Outcome):
        self.outcomes = list(outcomes)
        self.looks: list[tuple[tuple[int, ...], int]] = []

    def __call__(
        self, matrix: Matrix, cell: DeclaredCell, root: Path, seeds: tuple[int, ...], looks_done: int, unfinished: Sequence[Unfinished]
    ) -> CellVerdict:
        self.looks.append((seeds, looks_done))
        return CellVerdict(str(cell), self.outcomes.pop(0), ("said so",), seeds)


def test_seeds_are_added_while_the_verdict_is_inconclusive_and_no_longer(matrix: Matrix, options: Options):
    judge = Judge(Outcome.INCONCLUSIVE, Outcome.PASS)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET, judge)
    assert (verdict.outcome, verdict.seeds) == (Outcome.PASS, (100, 101))
    assert judge.looks == [((100,), 0), ((100, 101), 1)]


def test_no_more_seeds_than_the_rule_allows(matrix: Matrix, options: Options):
    judge = Judge(*[Outcome.INCONCLUSIVE] * 3)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET, judge)
    assert (verdict.outcome, verdict.seeds) == (Outcome.INCONCLUSIVE, (100, 101, 102))


def test_a_verdict_is_never_retried(matrix: Matrix, options: Options):
    judge = Judge(Outcome.FAIL)
    assert run_cell(matrix, matrix.cell(CELL), options, QUIET, judge).outcome is Outcome.FAIL
    assert judge.looks == [((100,), 0)]


def test_seeds_asked_for_are_the_only_ones(matrix: Matrix, options: Options):
    judge = Judge(Outcome.INCONCLUSIVE)
    verdict = run_cell(matrix, matrix.cell(CELL), replace(options, seeds=(104, 107)), QUIET, judge)
    assert (verdict.outcome, verdict.seeds) == (Outcome.INCONCLUSIVE, (104, 107))


def test_runs_made_without_judging_are_judged_later_from_what_lies_there(matrix: Matrix, options: Options):
    cell = matrix.cell(CELL)
    part = run_cell(matrix, cell, replace(options, seeds=(100,), judge=False), QUIET)
    assert (part.outcome, part.path) == (None, "")
    run_cell(matrix, cell, replace(options, seeds=(101,), judge=False), QUIET)
    judge = Judge(Outcome.PASS)
    verdict = run_cell(matrix, cell, replace(options, judge_only=True), QUIET, judge)
    assert (verdict.outcome, verdict.seeds) == (Outcome.PASS, (100, 101))


def test_judging_nothing_is_not_run(matrix: Matrix, options: Options):
    verdict = run_cell(matrix, matrix.cell(CELL), replace(options, judge_only=True), QUIET)
    assert verdict.outcome is Outcome.NOT_RUN
    assert "no run of this cell lies in" in verdict.reasons[0]
    assert json.loads(Path(verdict.path).read_text())["outcome"] == "NOT_RUN"


def test_without_a_baseline_the_verdict_says_so(matrix: Matrix, options: Options):
    assert run_cell(matrix, matrix.cell(CELL), options, QUIET).outcome is Outcome.NO_BASELINE


@pytest.mark.parametrize(
    ("behaviour", "outcome", "reason"),
    [
        ("crash at 0", Outcome.INCOMPLETE, "seed 100: 0/40 steps, exit code 3"),
        ("crash at 9", Outcome.INCOMPLETE, "seed 100: 9/40 steps, exit code 3"),
        ("killed at 9", Outcome.INCOMPLETE, "seed 100: 9/40 steps, killed by SIGKILL"),
        ("infra at 9", Outcome.INFRA, "seed 100: 0/40 steps, exit code 3: OSError: [Errno 28] No space left on device"),
    ],
)
def test_a_run_without_an_end_decides_the_cell(matrix: Matrix, options: Options, behave: Callable[..., None], behaviour: str, outcome: Outcome, reason: str):
    behave(seed_100=behaviour)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome is outcome
    assert any(reason in line for line in verdict.reasons), verdict.reasons
    kept = json.loads(Path(verdict.path).read_text())
    assert kept["outcome"] == str(outcome)
    assert kept["declared"]["cell"] == CELL


def test_all_steps_and_then_an_error_is_no_pass(matrix: Matrix, options: Options, behave: Callable[..., None]):
    behave(seed_100="crash at 40")
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "40/40 steps, exit code 3" in verdict.reasons[0]


def test_a_fault_is_planted_beside_the_cell_s_own_results(matrix: Matrix, options: Options):
    cell = matrix.cell(CELL)
    slow = plant("lr-tenth", options, cell)
    assert (slow.root, slow.overrides, slow.command) == (options.root / "fault-lr-tenth", ("train.lr=5e-05",), options.command)
    flipped = plant("sign-flip", options, cell)
    assert flipped.command[1:] == ("-m", "e2e.faults", "sign-flip", "train")
    with pytest.raises(SelectionError, match="nearest: sign-flip"):
        named("sign-flipp")
    assert {"lr-tenth", "rewards-shuffled", "sync-off", "sign-flip"} <= set(FAULTS)
