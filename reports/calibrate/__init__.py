"""The operating characteristic of a rule: how often it says what, of healthy candidates and of broken ones, resampled from stored runs.

Every trial draws a new baseline of the same size as the stored one and up to three candidates, all from the model in `resample.py`, and applies the rule's
learning and convergence checks with the very functions `judge` uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from matrix.rule import JudgeRule
from reports.calibrate.resample import CurveModel, fit
from reports.calibrate.scenarios import SCENARIOS, Scenario
from reports.checks import learning
from reports.checks.context import Case
from reports.checks.margins import decide, margins
from reports.errors import ReportError
from reports.model import Run
from reports.stats.intervals import run_sd, t_quantile
from reports.stats.looks import level_per_look
from reports.stats.summary import STATISTICS, Grid, drop_from_best, gain, summarise

LEAST_RUNS = 3
DRAWS = 200_000
HEALTHY_ERROR = 0.01  # how often one healthy run may fail to pass
CHUNK = 500  # trials at once: bounds the memory of B + 3 curves each


@dataclass(frozen=True)
class Rates:
    """Fractions of trials after looking at up to n candidates, n = 1..looks: it passed, it failed; the rest is undecided."""

    passed: tuple[float, ...]
    failed: tuple[float, ...]


@dataclass(frozen=True)
class Characteristic:
    """What a rule does. By statistic: `sd`, the stored runs' between-run spread, and `least_delta` (see there). `rates` by scenario."""

    runs: int
    steps: int
    trials: int
    level: float
    sd: dict[str, float]
    least_delta: dict[str, float]
    scenarios: tuple[Scenario, ...]
    rates: tuple[Rates, ...]


def operating_characteristic(runs: Sequence[Run], rule: JudgeRule, trials: int = 2000, seed: int = 0) -> Characteristic:
    """Raises ReportError for a rule without convergence, fewer than three runs, or runs whose common steps are not the planned ones."""
    if rule.evidence != "convergence":
        raise ReportError("the rule judges exactness: it has no error rates to estimate")
    if len(runs) < LEAST_RUNS:
        raise ReportError(f"{len(runs)} run(s): a spread between runs needs {LEAST_RUNS} or more")
    case = Case(runs, (), rule)
    _check_grid(case)
    values = case.values(runs)
    if not np.isfinite(values).all():
        raise ReportError(f"{rule.metric} is not finite in every run")
    model, rng = fit(values), np.random.default_rng(seed)
    level = level_per_look(len(runs), rule.max_seeds, rule.alpha, rule.spread)
    rates = tuple(_rates(model, scenario, rule, case.grid, level, trials, rng) for scenario in SCENARIOS)
    summary = summarise(values, case.grid)
    sd = {name: float(run_sd(np.exp(summary[name]) if name == "residual" else summary[name])) for name in STATISTICS}
    return Characteristic(len(runs), len(case.common), trials, level, sd, least_delta(summary, rule, len(case.common), level), SCENARIOS, rates)


def _check_grid(case: Case) -> None:
    """The common steps reach the planned end at one stride: 1, or an evaluation's."""
    common, planned = case.common, case.rule.planned_steps
    strides = np.unique(np.diff(common))
    whole = len(strides) == 1 and len(common) == planned // int(strides[0])
    if not whole or not case.grid.first.any() or not case.grid.last.any():
        raise ReportError(f"the runs share {len(common)} steps of {case.rule.metric}; the rule plans {planned}")


def least_delta(summary: dict[str, np.ndarray], rule: JudgeRule, steps: int, level: float) -> dict[str, float]:
    """By statistic the smallest δ at which one healthy run passes in 99 % of the nights, all statistics together.

    The run passes where |difference| + t(level)·s·√(1 + 1/B) < δ; the difference is normal with the stored spread σ, s estimates σ with B-1 degrees of freedom.
    """
    found, declared, rng = {}, margins(rule, steps), np.random.default_rng(0)
    for margin in declared:
        values = summary[margin.statistic]
        sigma, runs = max(float(run_sd(values)), margin.floor), len(values)
        estimate = np.maximum(sigma * np.sqrt(rng.chisquare(runs - 1, DRAWS) / (runs - 1)), margin.floor)
        reach = np.abs(rng.normal(0, sigma, DRAWS)) + t_quantile(1 - level, runs - 1) * estimate
        delta = float(np.quantile(reach, 1 - HEALTHY_ERROR / len(declared))) * np.sqrt(1 + 1 / runs)
        found[margin.statistic] = float(np.exp(delta)) if margin.statistic == "residual" else delta
    return found


def _rates(model: CurveModel, scenario: Scenario, rule: JudgeRule, at: Grid, level: float, trials: int, rng: np.random.Generator) -> Rates:
    passed, failed, done = np.zeros(rule.max_seeds), np.zeros(rule.max_seeds), 0
    while done < trials:
        count = min(CHUNK, trials - done)
        baseline = model.draw(rng, (count, model.runs))
        candidates = scenario.change(model, model.draw(rng, (count, rule.max_seeds), **scenario.draw(model)), rule, at)
        ok, bad = _decisions(candidates, baseline, rule, at, level)
        passed, failed, done = passed + ok, failed + bad, done + count
    return Rates(tuple((passed / trials).tolist()), tuple((failed / trials).tolist()))


def _decisions(candidates: np.ndarray, baseline: np.ndarray, rule: JudgeRule, at: Grid, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Counts of trials passed and failed after each look. candidates: float64[trials, looks, S]; baseline: float64[trials, B, S]."""
    sign = 1.0 if rule.better == "higher" else -1.0
    ours, theirs = summarise(candidates, at), summarise(baseline, at)
    learns = gain(candidates * sign, at) > learning.least_gain(candidates * sign, baseline * sign, rule, at)
    width = int(at.first.sum())
    keeps = drop_from_best(candidates * sign, width) <= learning.largest_drop(candidates * sign, baseline * sign, rule, width)
    passed, failed = np.zeros(len(candidates), dtype=bool), np.zeros(len(candidates), dtype=bool)
    ok, bad = np.zeros(rule.max_seeds), np.zeros(rule.max_seeds)
    for look in range(rule.max_seeds):
        shown = {name: values[:, : look + 1] for name, values in ours.items()}
        decisions = decide(shown, theirs, rule, len(at.steps), level)
        broken = ~(learns & keeps)[:, : look + 1].all(axis=-1) | np.logical_or.reduce([d.outside for d in decisions])
        good = ~broken & np.logical_and.reduce([d.inside for d in decisions])
        open_ = ~passed & ~failed
        passed, failed = passed | (open_ & good), failed | (open_ & broken)
        ok[look], bad[look] = passed.sum(), failed.sum()
    return ok, bad
