"""Exact-trajectory cells: a candidate must reproduce one run of the baseline step by step (matrix.rule.Trajectory)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from matrix.outcome import Outcome
from matrix.rule import Trajectory
from reports.checks.context import Case, common_steps
from reports.model import Curve, Run
from reports.verdict import Check

LEAST_SHARE = 0.5  # of the sparser curve's steps that both must have


def check(run: Run, case: Case) -> Iterator[Check]:
    """Pointwise and mean distance to the named run, on the steps both have."""
    band = case.rule.exactness.trajectory
    assert band is not None
    found = reference(case, band)
    if isinstance(found, str):
        yield _check(run, "trajectory", False, Outcome.INVALID if case.baseline else Outcome.NO_BASELINE, found, missing=True)
        return
    ours, theirs = case.curve(run), case.curve(found)
    steps = common_steps([ours, theirs])
    fewest = min(len(ours.steps), len(theirs.steps))
    if not fewest or len(steps) < LEAST_SHARE * fewest:
        words = (
            f"shares {len(steps)} steps of {case.rule.metric} with {found.name} ({len(ours.steps)} and {len(theirs.steps)} are recorded): too few to compare"
        )
        yield _check(run, "trajectory", False, Outcome.INCONCLUSIVE, words)
        return
    yield from _distances(run, found, ours, theirs, steps, band)


def reference(case: Case, band: Trajectory) -> Run | str:
    """The baseline run to reproduce, or why there is none."""
    if band.seed is None:
        if len(case.baseline) == 1:
            return case.baseline[0]
        return f"{len(case.baseline)} baseline runs: an exact trajectory reproduces one; give its seed" if case.baseline else "no run to reproduce is given"
    named = [run for run in case.baseline if run.seed == band.seed]
    return named[0] if named else f"no baseline run has seed {band.seed}, which is to be reproduced"


def _distances(run: Run, other: Run, ours: Curve, theirs: Curve, steps: np.ndarray, band: Trajectory) -> Iterator[Check]:
    apart = ours.at(steps) - theirs.at(steps)
    distance = np.abs(apart)
    worst = int(np.argmax(distance))  # of a NaN, if there is one
    where = f"on {len(steps)} common steps" + ("" if len(steps) == len(ours.steps) == len(theirs.steps) else f" of {len(ours.steps)} and {len(theirs.steps)}")
    text = f"largest distance to {other.name} {where} is {distance[worst]:.4g} (step {steps[worst]}), allowed {band.pointwise:g}"
    yield _check(run, "trajectory, pointwise", bool(distance[worst] <= band.pointwise), Outcome.FAIL, text, float(distance[worst]), band.pointwise)
    mean = float(abs(apart.mean()))
    text = f"mean distance to {other.name} {where} is {mean:.4g}, allowed {band.mean:g}"
    yield _check(run, "trajectory, mean", mean <= band.mean, Outcome.FAIL, text, mean, band.mean)


def _check(
    run: Run, name: str, good: bool, outcome: Outcome, text: str, value: float | None = None, limit: float | None = None, missing: bool = False
) -> Check:
    state = "good" if good else "missing" if missing else "bad"
    return Check(stage="exactness", name=name, run=run.name, state=state, outcome=outcome, text=f"{run.name}: {text}", value=value, limit=limit)
