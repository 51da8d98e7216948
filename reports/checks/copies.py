"""Copies: one curve that is counted twice, or shown as another seed, another machine, another commit."""

from __future__ import annotations

import numpy as np

from matrix.outcome import Outcome
from reports.checks.context import Case
from reports.model import Curve, Run
from reports.verdict import Check

LEAST_DISTINCT_VALUES = 5  # flat curves (all zero, all one) are alike without being copies
SAME = 1e-5  # relative: a copy stays one when it is exported with six digits


def check(case: Case) -> list[Check]:
    """One check for every run whose curve is that of an earlier one; one good check where there is none."""
    seen: list[tuple[Run, str]] = []
    found: list[Check] = []
    for side, runs in (("baseline ", case.baseline), ("", case.candidates)):
        for run in runs:
            curve = case.curve(run)
            if _few_values(curve):
                continue
            first = next(
                ((other, where) for other, where in seen if same(curve, case.curve(other)) and not _is_reproduction(run, side, other, where, case)), None
            )
            if first is not None:
                found.append(_copied(run, side, *first))
            seen.append((run, side))
    return found or [Check(stage="integrity", name="copy", state="good", outcome=Outcome.INVALID, text="no two curves are equal")]


def _few_values(curve: Curve) -> bool:
    head = curve.values[: 4 * LEAST_DISTINCT_VALUES].tolist()
    return len(set(head)) < LEAST_DISTINCT_VALUES and len(np.unique(curve.values)) < LEAST_DISTINCT_VALUES


def _is_reproduction(run: Run, side: str, other: Run, where: str, case: Case) -> bool:
    """An exact-trajectory candidate is meant to equal its reference; what it cost in time is then all that can tell it from a copy."""
    if case.rule.exactness.trajectory is None or side == where:
        return False
    timed = [name for name in ("perf/step_s", "perf/rollout_s", "perf/train_s") if name in run.facts and name in other.facts]
    return not timed or any(run.facts[name] != other.facts[name] for name in timed)


def same(one: Curve, other: Curve) -> bool:
    """Whether two curves have the same steps and, to six digits, the same values."""
    if len(one.values) != len(other.values) or not len(one.values):
        return False
    near = abs(float(one.values[0]) - float(other.values[0])) <= SAME * abs(float(other.values[0]))
    if not near and np.isfinite(one.values[0]) and np.isfinite(other.values[0]):
        return False
    return np.array_equal(one.steps, other.steps) and np.allclose(one.values, other.values, rtol=SAME, atol=0, equal_nan=True)


def _copied(run: Run, side: str, first: Run, first_side: str) -> Check:
    claims = [f"{what} {ours} and {theirs}" for what, ours, theirs in _claims(run, first) if ours != theirs]
    words = f"claimed as different ({'; '.join(claims)})" if claims else "one run given twice"
    text = f"{side}{run.name} has the same curve, value for value, as {first_side}{first.name}: {words}; a copy is no second measurement"
    return Check(stage="integrity", name="copy", run=side + run.name, state="bad", outcome=Outcome.INVALID, text=text)


def _claims(run: Run, first: Run) -> list[tuple[str, object, object]]:
    return [
        ("seed", run.seed, first.seed),
        ("commit", run.manifest.get("commit"), first.manifest.get("commit")),
        ("host", host_name(run), host_name(first)),
        ("cell", run.labels.get("cell"), first.labels.get("cell")),
    ]


def host_name(run: Run) -> object:
    host = run.manifest.get("host")
    return host.get("hostname") if isinstance(host, dict) else host
