"""Are these files what they claim to be, whole, and comparable? Every condition is written as "good if": what is absent is not good."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from matrix.outcome import Outcome
from reports.checks.context import Case, origin, span, usual_stride
from reports.errors import ReportError
from reports.facts import of_curves
from reports.metrics import MUST_BE_FINITE, REWARD
from reports.model import NoteKind, Run
from reports.verdict import Check

FIRST_CANDIDATE_SEED = 100
MOST_RECORDS = 10_000_000
LEAST_SHARE = 0.5  # of the sparsest curve's steps that all runs must have


def check(case: Case) -> list[Check]:
    """Integrity of every run, candidates first. A baseline that is broken is INVALID whatever broke it: nothing can be compared with it."""
    from reports.checks import copies, labels

    found = [item for run in case.candidates for item in _of_run(run, case, Outcome.FAIL, Outcome.INCOMPLETE)]
    found += [item for run in case.baseline for item in _of_run(run, case, Outcome.INVALID, Outcome.INVALID, "baseline ")]
    found += [*labels.check(case), *copies.check(case), *labels.same_seed_twice(case)]
    return found if any(item.state != "good" for item in found) else found + list(_common(case))


def _common(case: Case) -> Iterator[Check]:
    """Curves on different steps are compared on those they share. Too few of them decide nothing."""
    curves = [case.curve(run) for run in (*case.candidates, *case.baseline)]
    fewest = min((len(curve.steps) for curve in curves if len(curve.steps)), default=0)
    if case.rule.evidence != "convergence" or not case.baseline or not fewest:
        return
    shared = len(case.common)
    if len({len(curve.steps) for curve in curves}) == 1 and shared == fewest:
        return
    good = shared >= LEAST_SHARE * fewest and bool(case.grid.first.any() and case.grid.last.any())
    words = "" if good else ": too few to compare"
    yield _check("common steps", "", good, Outcome.INCONCLUSIVE, f"the runs share {shared} steps of {case.rule.metric} ({fewest} in the sparsest){words}")


def _of_run(run: Run, case: Case, broken: Outcome, short: Outcome, side: str = "") -> Iterator[Check]:
    who = side + run.name
    unreadable = run.notes_of(NoteKind.UNREADABLE)
    if unreadable or not len(run.steps):
        yield _check("readable", who, False, Outcome.INVALID, f"{who}: {unreadable[0].text if unreadable else 'holds no step'}")
        return
    yield _check("readable", who, True, Outcome.INVALID, f"{who}: {len(run.steps)} steps read")
    yield _has_metric(run, case, who)
    yield _finite(run, case, who, broken)
    yield from _moves(run, case, who, reference=bool(side) or case.rule.exactness.trajectory is not None)
    yield _complete(run, case, who, short)


def _has_metric(run: Run, case: Case, who: str) -> Check:
    metric = case.rule.metric
    text_values = [note for note in run.notes_of(NoteKind.TEXT_VALUE) if note.metric == metric]
    if text_values:
        return _check("metric", who, False, Outcome.INVALID, f"{who}: {text_values[0].text}")
    have = case.curve(run).steps
    if not len(have):
        if metric in run.ambiguous:
            choices = " or ".join(run.ambiguous[metric])
            return _check("metric", who, False, Outcome.INVALID, f"{who}: {metric} could be {choices}: name the one to judge (--metric)", "missing")
        near = ", ".join(run.recorded[:8])
        return _check("metric", who, False, Outcome.INVALID, f"{who}: {metric} is not recorded (recorded: {near})", "missing")
    expected = _expected_metric_steps(run, case)
    wanted = expected if expected is run.steps or np.array_equal(expected, run.steps) else np.intersect1d(run.steps, expected, assume_unique=True)
    missing = np.empty(0, dtype=np.int64) if np.array_equal(wanted, have) else np.setdiff1d(wanted, have, assume_unique=True)
    if len(missing):
        return _check("metric", who, False, Outcome.INVALID, f"{who}: {metric} is missing at step {span(missing.tolist())}", "missing")
    return _check("metric", who, True, Outcome.INVALID, f"{who}: {metric} at {len(have)} steps")


def _expected_metric_steps(run: Run, case: Case) -> np.ndarray:
    """A metric that the baseline records sparsely (an evaluation) is expected at the baseline's steps, any other at every step."""
    recorded = [case.curve(other).steps for other in case.baseline if other is not run and len(case.curve(other).steps)]
    return recorded[0] if recorded else run.steps


def _finite(run: Run, case: Case, who: str, broken: Outcome) -> Check:
    curve = case.curve(run)
    own = {} if np.isfinite(curve.values).all() else of_curves({case.rule.metric: curve}, [case.rule.metric])
    for metric in dict.fromkeys((case.rule.metric, *MUST_BE_FINITE)):
        found = (own if metric == case.rule.metric else run.facts).get(metric)
        if found is not None and found.bad_step is not None:
            more = f", the first of {found.bad_count} such steps" if found.bad_count > 1 else ""
            return _check("finite", who, False, broken, f"{who}: {metric} is {found.bad_value} at step {found.bad_step}{more}")
    return _check("finite", who, True, broken, f"{who}: finite")


def _moves(run: Run, case: Case, who: str, reference: bool) -> Iterator[Check]:
    """A golden of zeros, or a `reference` of any one number, measures nothing: on either side. (A candidate's own log is held to learning.)"""
    values = case.curve(run).values
    golden = any(note.metric == case.rule.metric for note in run.notes_of(NoteKind.VACUOUS))
    if (reference or golden) and len(values) > 1 and bool((values == values[0]).all()):
        yield _check("moves", who, False, Outcome.INVALID, f"{who}: {case.rule.metric} is {values[0]:g} at all {len(values)} steps: no measurement")


def expected_steps(done: np.ndarray, start: int, planned: int) -> np.ndarray:
    """int64[]: the steps of a whole run that records at the stride most common in `done` (every step, or an evaluation's or a log's interval).

    Raises ReportError for a plan of more records than any curve has: its unit is another one than the steps'.
    """
    first, stride = start, usual_stride(done)
    if stride > 1:
        phases, often = np.unique(done % stride, return_counts=True)
        first = start + (int(phases[np.argmax(often)]) - start) % stride
    if planned // stride > MOST_RECORDS:
        raise ReportError(f"planned_steps {planned} is {planned // stride} records at every {stride} step(s): is it counted in the curves' unit?")
    return np.arange(first, start + planned, stride)


def _complete(run: Run, case: Case, who: str, short: Outcome) -> Check:
    planned, done = case.rule.planned_steps, run.steps
    start = origin(done)
    expected = expected_steps(done, start, planned)
    missing = np.empty(0, dtype=np.int64) if np.array_equal(expected, done) else np.setdiff1d(expected, done, assume_unique=True)
    if not len(missing) and done[-1] < start + planned:
        sparse = "" if len(expected) == planned else f", recorded at {len(done)}"
        return _check("complete", who, True, short, f"{who}: {planned}/{planned} steps{sparse}", value=float(planned), limit=float(planned))
    if done[-1] >= start + planned:
        return _check(
            "complete",
            who,
            False,
            Outcome.INVALID,
            f"{who}: went on to step {done[-1]}, {planned} steps are planned",
            value=float(len(done)),
            limit=float(planned),
        )
    stopped = _early_stop(run)
    if case.rule.early_stop and stopped and not len(np.setdiff1d(expected[expected <= done[-1]], done)):
        least, made = case.rule.windows.first + case.rule.windows.last, int(done[-1]) - start + 1
        if case.rule.evidence == "convergence" and made < least:
            text = f"{who}: stopped early after {made} steps ({stopped}), before first and last window are apart ({least} steps)"
            return _check("complete", who, False, short, text, value=float(made), limit=float(least))
        return _check("complete", who, True, short, f"{who}: stopped early at step {done[-1]} ({stopped}), as the recipe allows")
    infra = run.runner.get("infra_class")
    reached = len(expected) - len(missing)
    text = f"{who}: {reached}/{len(expected)} steps; missing: step {span(missing.tolist())}{_why_ended(run)}"
    if infra:
        return _check(
            "complete",
            who,
            False,
            Outcome.INFRA if short is Outcome.INCOMPLETE else short,
            f"{text}; lost to infrastructure: {infra}",
            value=reached,
            limit=len(expected),
        )
    return _check("complete", who, False, short, text, value=reached, limit=len(expected))


def _early_stop(run: Run) -> str:
    reasons = [str(event.get("reason", "")) for event in run.events_of("early_stop")]
    return reasons[-1] if reasons else ""


def _why_ended(run: Run) -> str:
    errors = run.events_of("error")
    return (
        f"; its last error, in {errors[-1].get('stage', '?')}: {str(errors[-1].get('text', '')).splitlines()[0][:200]}"
        if errors and errors[-1].get("text")
        else ""
    )


def _check(name: str, run: str, good: bool, outcome: Outcome, text: str, state: str = "bad", value: float | None = None, limit: float | None = None) -> Check:
    return Check(stage="integrity", name=name, run=run, state="good" if good else state, outcome=outcome, text=text, value=value, limit=limit)


def reward_values_in_range(run: Run, low: float, high: float, who: str) -> Check:
    """Rewards outside the declared range mean another scale or definition: not comparable."""
    curve = run.curves.get(REWARD)
    if curve is None or not len(curve.values):
        return _check("reward range", who, False, Outcome.INVALID, f"{who}: {REWARD} is not recorded, its range cannot be checked", "missing")
    finite = curve.values[np.isfinite(curve.values)]
    good = bool(((finite >= low) & (finite <= high)).all())
    where = "" if good else f"; it holds {finite.min():.6g} to {finite.max():.6g}: another scale or definition"
    return _check("reward range", who, good, Outcome.INVALID, f"{who}: reward declared within [{low:g}, {high:g}]{where}")
