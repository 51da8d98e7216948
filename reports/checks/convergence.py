"""Candidates against the baseline distribution: difference, interval and margin of every run-level statistic."""

from __future__ import annotations

import math

import numpy as np

from reports.checks import statistics
from reports.checks.context import Case
from reports.checks.margins import decide_one
from reports.checks.statistics import Sides
from reports.stats.intervals import run_sd
from reports.stats.looks import level_per_look, paired_level_per_look
from reports.verdict import Comparison

LEAST_BASELINE_RUNS = 2  # below that there is no spread, and the comparison is descriptive


def compare(case: Case) -> tuple[list[Comparison], float | None]:
    """Comparisons of every declared statistic and the one-sided level of their intervals (None where descriptive)."""
    if not len(case.common) or not case.baseline or (case.rule.paired and not case.pairs):
        return [], None
    found = statistics.of_case(case)
    if len(case.baseline) < LEAST_BASELINE_RUNS:
        return [_descriptive(sides) for sides in found], None
    level = level_of(case)
    return [_comparison(sides, case, level) for sides in found], level


def level_of(case: Case) -> float:
    """The level of this look. Pools of several statistics have equal degrees of freedom unless a statistic is undefined in one: the fewest count."""
    rule = case.rule
    if rule.paired:
        return paired_level_per_look(rule.max_seeds, rule.alpha)
    extra = [pool.df for pool in (statistics.pool_of(case.pool, name) for name in ("first", "last", "whole")) if pool]
    df = len(case.baseline) - 1 + min(extra) if case.pool and extra else None
    return level_per_look(len(case.baseline), rule.max_seeds, rule.alpha, rule.spread, df)


def _comparison(sides: Sides, case: Case, level: float) -> Comparison:
    with np.errstate(invalid="ignore"):
        decision = decide_one(sides.margin, sides.candidate, sides.baseline, case.rule, level, sides.pool)
    interval, margin = decision.interval, decision.margin
    ends = finite(interval.low), finite(interval.high)
    state = "undefined" if None in ends else "inside" if decision.inside else "outside" if decision.outside else "between"
    scaled = math.exp if margin.statistic == "residual" else float
    low, high = (None if end is None else scaled(end) for end in ends)
    margin_low, margin_high = (None if math.isinf(end) else scaled(end) for end in (margin.low, margin.high))
    common = _sides(sides)
    text = _words(common, state, low, high, margin_low, margin_high)
    return Comparison(
        **common,
        low=low,
        high=high,
        margin_low=margin_low,
        margin_high=margin_high,
        se=finite(interval.se),
        df=finite(interval.df),
        state=state,
        far_better=bool(decision.far_better) and margin.statistic != "residual",
        p_outside=finite(decision.p_outside),
        text=text,
    )


def _descriptive(found: Sides) -> Comparison:
    sides = _sides(found)
    text = f"{sides['title']}: {_difference(sides)}; one baseline run has no spread, so there is no interval"
    return Comparison(**sides, low=None, high=None, margin_low=None, margin_high=None, se=None, df=None, state="descriptive", text=text)


def _sides(found: Sides) -> dict:
    """What both sides are, in the unit people read (a ratio for the residual)."""
    is_ratio = found.margin.statistic == "residual"
    candidate, baseline = found.candidate, found.baseline
    scaled = (lambda value: float(np.exp(value))) if is_ratio else float
    gap = candidate.mean() - baseline.mean()
    return {
        "statistic": found.margin.statistic,
        "title": found.title,
        "scale": "ratio" if is_ratio else "difference",
        "candidate": [scaled(value) for value in candidate],
        "baseline": [scaled(value) for value in baseline],
        "candidate_mean": scaled(candidate.mean()),
        "baseline_mean": scaled(baseline.mean()),
        "candidate_sd": finite(run_sd(np.exp(candidate) if is_ratio else candidate)),
        "baseline_sd": finite(run_sd(np.exp(baseline) if is_ratio else baseline)),
        "difference": scaled(gap),
        "delta": found.margin.delta,
        "n": len(candidate),
        "B": len(baseline),
        "gates": found.gates,
        "metric": found.metric,
    }


def _words(sides: dict, state: str, low: float | None, high: float | None, margin_low: float | None, margin_high: float | None) -> str:
    if state == "undefined":
        return f"{sides['title']}: no interval can be given ({_why_undefined(sides)})"
    allowed = " to ".join("any" if end is None else number(end, sides["scale"]) for end in (margin_low, margin_high))
    where = {"inside": "inside its margin", "outside": "wholly outside its margin", "between": "reaches over its margin"}[state]
    return f"{sides['title']}: {_difference(sides)}, interval {number(low, sides['scale'])} to {number(high, sides['scale'])}, {where} ({allowed})"


def _why_undefined(sides: dict) -> str:
    if not np.isfinite([*sides["candidate"], *sides["baseline"]]).all():
        return "not recorded by every run, or not finite"
    return "one pair has no spread" if sides["n"] == sides["B"] == 1 else "no spread between the runs, or a curve without noise"


def _difference(sides: dict) -> str:
    unit = "ratio " if sides["scale"] == "ratio" else ""
    against = f"{sides['candidate_mean']:.4f} against {sides['baseline_mean']:.4f}"
    return f"{unit}{number(sides['difference'], sides['scale'])} ({against})"


def number(value: float | None, scale: str) -> str:
    """A difference with its sign, a ratio without."""
    return "–" if value is None else f"{value:.3g}×" if scale == "ratio" else f"{value:+.4f}"


def finite(value: np.ndarray | float) -> float | None:
    return float(value) if np.isfinite(value) else None
