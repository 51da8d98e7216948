"""Candidates against the baseline distribution: difference, interval and margin of every run-level statistic."""

from __future__ import annotations

import math

import numpy as np

from reports.checks.context import Case
from reports.checks.margins import Decision, decide, margins
from reports.stats.intervals import run_sd
from reports.stats.looks import level_per_look
from reports.stats.summary import TITLES, summarise
from reports.verdict import Comparison

LEAST_BASELINE_RUNS = 2  # below that there is no spread, and the comparison is descriptive


def compare(case: Case) -> tuple[list[Comparison], float | None]:
    """Comparisons of every declared statistic and the one-sided level of their intervals (None where descriptive)."""
    if not len(case.common) or not case.baseline:
        return [], None
    candidate, baseline = summarise(case.values(case.candidates), case.grid), summarise(case.values(case.baseline), case.grid)
    if len(case.baseline) < LEAST_BASELINE_RUNS:
        return [_descriptive(m.statistic, m.delta, candidate[m.statistic], baseline[m.statistic]) for m in margins(case.rule, len(case.common))], None
    level = level_per_look(len(case.baseline), case.rule.max_seeds, case.rule.alpha, case.rule.spread)
    decisions = decide(candidate, baseline, case.rule, len(case.common), level)
    return [_comparison(d, candidate[d.margin.statistic], baseline[d.margin.statistic]) for d in decisions], level


def _comparison(decision: Decision, candidate: np.ndarray, baseline: np.ndarray) -> Comparison:
    interval, margin = decision.interval, decision.margin
    ends = finite(interval.low), finite(interval.high)
    state = "undefined" if None in ends else "inside" if decision.inside else "outside" if decision.outside else "between"
    scaled = math.exp if margin.statistic == "residual" else float
    low, high = (None if end is None else scaled(end) for end in ends)
    margin_low, margin_high = (None if math.isinf(end) else scaled(end) for end in (margin.low, margin.high))
    common = _sides(margin.statistic, margin.delta, candidate, baseline)
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
        text=text,
    )


def _descriptive(statistic: str, delta: float, candidate: np.ndarray, baseline: np.ndarray) -> Comparison:
    sides = _sides(statistic, delta, candidate, baseline)
    text = f"{sides['title']}: {_difference(sides)}; one baseline run has no spread, so there is no interval"
    return Comparison(**sides, low=None, high=None, margin_low=None, margin_high=None, se=None, df=None, state="descriptive", text=text)


def _sides(statistic: str, delta: float, candidate: np.ndarray, baseline: np.ndarray) -> dict:
    """What both sides are, in the unit people read (a ratio for the residual)."""
    is_ratio = statistic == "residual"
    scaled = (lambda value: float(np.exp(value))) if is_ratio else float
    gap = candidate.mean() - baseline.mean()
    return {
        "statistic": statistic,
        "title": TITLES[statistic],
        "scale": "ratio" if is_ratio else "difference",
        "candidate": [scaled(value) for value in candidate],
        "baseline": [scaled(value) for value in baseline],
        "candidate_mean": scaled(candidate.mean()),
        "baseline_mean": scaled(baseline.mean()),
        "candidate_sd": finite(run_sd(np.exp(candidate) if is_ratio else candidate)),
        "baseline_sd": finite(run_sd(np.exp(baseline) if is_ratio else baseline)),
        "difference": scaled(gap),
        "delta": delta,
        "n": len(candidate),
        "B": len(baseline),
    }


def _words(sides: dict, state: str, low: float | None, high: float | None, margin_low: float | None, margin_high: float | None) -> str:
    if state == "undefined":
        return f"{sides['title']}: no interval can be given (no spread between the runs, or a curve without noise)"
    allowed = " to ".join("any" if end is None else number(end, sides["scale"]) for end in (margin_low, margin_high))
    where = {"inside": "inside its margin", "outside": "wholly outside its margin", "between": "reaches over its margin"}[state]
    return f"{sides['title']}: {_difference(sides)}, interval {number(low, sides['scale'])} to {number(high, sides['scale'])}, {where} ({allowed})"


def _difference(sides: dict) -> str:
    unit = "ratio " if sides["scale"] == "ratio" else ""
    against = f"{sides['candidate_mean']:.4f} against {sides['baseline_mean']:.4f}"
    return f"{unit}{number(sides['difference'], sides['scale'])} ({against})"


def number(value: float | None, scale: str) -> str:
    """A difference with its sign, a ratio without."""
    return "–" if value is None else f"{value:.3g}×" if scale == "ratio" else f"{value:+.4f}"


def finite(value: np.ndarray | float) -> float | None:
    return float(value) if np.isfinite(value) else None
