"""Both sides of every run-level statistic that a rule declares, primary and secondary, as numbers of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from matrix.rule import Secondary
from reports.checks.context import EMPTY, Case, common_steps
from reports.checks.margins import Margin, margins, secondary_margin
from reports.metrics import title
from reports.model import Run, printable
from reports.stats.intervals import Pool, pooled, run_sd
from reports.stats.summary import STATISTICS, TITLES, steps_to, summarise
from reports.verdict import PoolGroup


@dataclass(frozen=True)
class Sides:
    """candidate: float64[n], baseline: float64[B] (both float64[pairs] for a paired rule), on the scale of the comparison; `metric` "" is the judged one."""

    margin: Margin
    title: str
    candidate: np.ndarray
    baseline: np.ndarray
    pool: Pool | None
    gates: bool = True
    metric: str = ""


def of_case(case: Case) -> list[Sides]:
    """Every declared statistic of a case whose runs share steps."""
    ours, theirs = summarise(case.candidate_values, case.grid), summarise(case.baseline_values, case.grid)
    declared = margins(case.rule, len(case.common))
    found = [Sides(m, TITLES[m.statistic], ours[m.statistic], theirs[m.statistic], pool_of(case.pool, m.statistic)) for m in declared]
    for item in case.rule.secondary:
        values = secondary_values(item, case, [*case.candidates, *case.baseline])
        split = len(case.candidates)
        words = secondary_title(item, case)
        margin = secondary_margin(item, case.rule)
        found.append(Sides(margin, words, values[:split], values[split:], pool_of(case.pool, item.name), item.gates, item.metric or ""))
    return [_paired(sides, case) for sides in found] if case.rule.paired else found


def _paired(sides: Sides, case: Case) -> Sides:
    pairs = case.pairs
    ours, theirs = (np.array([values[pair[side]] for pair in pairs]) for side, values in ((0, sides.candidate), (1, sides.baseline)))
    return Sides(sides.margin, sides.title, ours, theirs, None, sides.gates, sides.metric)


def secondary_title(item: Secondary, case: Case) -> str:
    what = title(item.metric or case.rule.metric)
    if item.statistic == "steps_to":
        return f"{item.name}: steps until {what} is at {item.threshold:g}"
    if item.statistic == "quantile":
        return f"{item.name}: {what}, quantile {item.quantile:g} over the steps"
    return f"{item.name}: {what}, {TITLES[item.statistic]}"


def secondary_values(item: Secondary, case: Case, runs: Sequence[Run]) -> np.ndarray:
    """float64[runs]: the statistic of each run on the steps all of them record; NaN for all where a run lacks the metric."""
    curves = [run.curves.get(item.metric or case.rule.metric, EMPTY) for run in runs]
    steps = common_steps(curves)
    if not len(steps):
        return np.full(len(runs), np.nan)
    values, at = np.array([curve.at(steps) for curve in curves]), case.windows(steps)
    if item.statistic == "quantile":
        assert item.quantile is not None
        return np.quantile(values, item.quantile, axis=-1)
    if item.statistic == "steps_to":
        assert item.threshold is not None
        return steps_to(values, steps, item.threshold, max(int(at.first.sum()), 1), case.rule.better == "higher", float(case.rule.planned_steps))
    return summarise(values, at)[item.statistic]


def pool_of(groups: Sequence[PoolGroup], statistic: str) -> Pool | None:
    return pooled([(group.runs - 1, group.variance[statistic]) for group in groups if statistic in group.variance])


def pool_group(name: str, path: str, runs: Sequence[Run], case: Case) -> PoolGroup:
    """What another baseline adds to the pooled spread. Statistics that its runs do not define are left out."""
    own = Case((), runs, case.rule)
    values = summarise(own.baseline_values, own.grid) if len(own.common) else {}
    found = {m.statistic: values[m.statistic] for m in margins(case.rule, len(own.common)) if values}
    found |= {item.name: secondary_values(item, own, runs) for item in case.rule.secondary}
    variance = {key: float(run_sd(value) ** 2) for key, value in found.items() if np.isfinite(value).all() and len(value) > 1}
    return PoolGroup(name=printable(name), path=printable(path), runs=len(runs), shas=[run.sha for run in runs], variance=variance)


__all__ = ["STATISTICS", "Sides", "of_case", "pool_group", "pool_of", "secondary_title", "secondary_values"]
