"""The operating characteristic of a rule: how often it says what, of healthy candidates and of broken ones, made from stored runs.

Every trial draws new baselines of 3, 5, 10 and as many runs as are stored, and up to three candidates, all from one model of the stored curves (`resample.py`:
by run and by blocks of residuals; `fitted.py`: a fitted curve), and applies the rule's learning and convergence checks with the very functions `judge` uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from matrix.rule import JudgeRule
from reports.calibrate import fitted, resample
from reports.calibrate.resample import CurveModel
from reports.calibrate.scenarios import SCENARIOS, Scenario
from reports.checks import learning
from reports.checks.context import Case
from reports.checks.margins import decide, margins
from reports.errors import ReportError
from reports.model import Run
from reports.stats.intervals import run_sd, t_quantile
from reports.stats.looks import level_per_look
from reports.stats.summary import STATISTICS, Grid, drop_from_best, gain, residual_sd, summarise

LEAST_RUNS = 3
SIZES = (3, 5, 10)  # baseline runs
DRAWS = 200_000
HEALTHY_ERROR = 0.01  # how often one healthy run may fail to pass
CHUNK_BYTES = 64e6  # curves made at once


@dataclass(frozen=True)
class Rates:
    """Fractions of trials after looking at up to n candidates, n = 1..looks: it passed, it failed; the rest is undecided."""

    passed: tuple[float, ...]
    failed: tuple[float, ...]


@dataclass(frozen=True)
class Characteristic:
    """What a rule does. By statistic: `sd`, the stored runs' between-run spread; by statistic and baseline size: `least_delta` (see there).

    rates[model][size][scenario]: models are "resampled" and, where growth describes the curve, "fitted". level: by size.
    """

    runs: int
    steps: int
    trials: int
    sizes: tuple[int, ...]
    level: dict[int, float]
    sd: dict[str, float]
    least_delta: dict[str, dict[int, float]]
    rates: dict[str, dict[int, dict[str, Rates]]]
    scenarios: tuple[Scenario, ...] = SCENARIOS


def operating_characteristic(runs: Sequence[Run], rule: JudgeRule, trials: int = 2000, seed: int = 0) -> Characteristic:
    """Raises ReportError for a rule without convergence, a paired one, fewer than three runs, or runs whose common steps are not the planned ones."""
    if rule.evidence != "convergence":
        raise ReportError("the rule judges exactness: it has no error rates to estimate")
    if rule.paired:
        raise ReportError("the rule is paired: stored runs do not tell how alike candidates of the same seeds are")
    if len(runs) < LEAST_RUNS:
        raise ReportError(f"{len(runs)} run(s): a spread between runs needs {LEAST_RUNS} or more")
    case = Case(runs, (), rule)
    rule = case.rule_to(case.common)
    case = replace(case, rule=rule)
    _check_grid(case)
    values = case.values(runs)
    if not np.isfinite(values).all():
        raise ReportError(f"{rule.metric} is not finite in every run")
    sizes = tuple(sorted({*SIZES, len(runs)}))
    level = {size: level_per_look(size, rule.max_seeds, rule.alpha, rule.spread) for size in sizes}
    models: dict[str, CurveModel | None] = {"resampled": resample.fit(values), "fitted": fitted.fit(values)}
    rates = {name: _all_rates(model, rule, case.grid, level, trials, seed) for name, model in models.items() if model is not None}
    summary = summarise(values, case.grid)
    sd = {name: float(run_sd(np.exp(summary[name]) if name == "residual" else summary[name])) for name in STATISTICS}
    least = least_delta(summary, rule, len(case.common), level)
    return Characteristic(len(runs), len(case.common), trials, sizes, level, sd, least, rates)


def _check_grid(case: Case) -> None:
    """The common steps reach the planned end at one stride: 1, or an evaluation's."""
    common, planned = case.common, case.rule.planned_steps
    strides = np.unique(np.diff(common))
    apart = case.rule.windows.first + case.rule.windows.last <= planned
    whole = apart and len(strides) == 1 and len(common) == planned // int(strides[0])
    if not whole or not case.grid.first.any() or not case.grid.last.any():
        raise ReportError(f"the runs share {len(common)} steps of {case.rule.metric}; the rule plans {planned}")


def least_delta(summary: dict[str, np.ndarray], rule: JudgeRule, steps: int, level: dict[int, float]) -> dict[str, dict[int, float]]:
    """By statistic and baseline size the smallest δ that is decidable: one healthy run passes in 99 % of the nights, all statistics together (and one that
    is 2 δ off fails as often, for the same reason).

    The run passes where |difference| + t(level)·s·√(1 + 1/B) < δ; the difference is normal with the stored spread σ, s estimates σ with B-1 degrees of freedom.
    """
    found: dict[str, dict[int, float]] = {}
    declared = margins(rule, steps)
    for margin in declared:
        sigma = max(float(run_sd(summary[margin.statistic])), margin.floor)
        found[margin.statistic] = {}
        for size, look in level.items():
            rng = np.random.default_rng(0)
            estimate = np.maximum(sigma * np.sqrt(rng.chisquare(size - 1, DRAWS) / (size - 1)), margin.floor)
            reach = np.abs(rng.normal(0, sigma, DRAWS)) + t_quantile(1 - look, size - 1) * estimate
            delta = float(np.quantile(reach, 1 - HEALTHY_ERROR / len(declared))) * np.sqrt(1 + 1 / size)
            found[margin.statistic][size] = float(np.exp(delta)) if margin.statistic == "residual" else float(delta)
    return found


@dataclass(frozen=True)
class Numbers:
    """What a set of curves comes to: statistics, gain, drop from the best window and step noise, each float64[trials, runs]."""

    statistics: dict[str, np.ndarray]
    gain: np.ndarray
    drop: np.ndarray
    noise: np.ndarray

    def first(self, runs: int) -> Numbers:
        kept = {name: values[:, :runs] for name, values in self.statistics.items()}
        return Numbers(kept, self.gain[:, :runs], self.drop[:, :runs], self.noise[:, :runs])


def _all_rates(model: CurveModel, rule: JudgeRule, at: Grid, level: dict[int, float], trials: int, seed: int) -> dict[int, dict[str, Rates]]:
    """One set of baselines serves every scenario: the rates differ by what is wrong with the candidates alone."""
    rng = np.random.default_rng(seed)
    baselines = _numbers(lambda count: model.draw(rng, (count, max(level))), trials, max(level), rule, at)
    found: dict[int, dict[str, Rates]] = {size: {} for size in level}
    for scenario in SCENARIOS:

        def candidates(count: int, scenario: Scenario = scenario) -> np.ndarray:
            return scenario.change(model, model.draw(rng, (count, rule.max_seeds), **scenario.draw(model)), rule, at)

        ours = _numbers(candidates, trials, rule.max_seeds, rule, at)
        for size in level:
            found[size][scenario.name] = _rates(ours, baselines.first(size), rule, at, level[size])
    return found


def _numbers(draw: Callable[[int], np.ndarray], trials: int, runs: int, rule: JudgeRule, at: Grid) -> Numbers:
    """Curves are made and reduced chunk by chunk, so that memory stays flat."""
    sign = 1.0 if rule.better == "higher" else -1.0
    chunk, width = max(1, int(CHUNK_BYTES // (8 * runs * len(at.steps)))), int(at.first.sum())
    parts = []
    for begin in range(0, trials, chunk):
        curves = draw(min(chunk, trials - begin))
        parts.append((summarise(curves, at), gain(curves * sign, at), drop_from_best(curves * sign, width), residual_sd(curves)))
    joined = {name: np.concatenate([part[0][name] for part in parts]) for name in STATISTICS}
    return Numbers(joined, *(np.concatenate([part[index] for part in parts]) for index in (1, 2, 3)))


def _rates(ours: Numbers, theirs: Numbers, rule: JudgeRule, at: Grid, level: float) -> Rates:
    """Passed and failed after each look."""
    width, trials = int(at.first.sum()), len(ours.gain)
    learns = np.full(ours.gain.shape, not rule.learning) | (ours.gain > learning.least_gain(ours.noise, theirs.gain, rule, at))
    keeps = ours.drop <= learning.largest_drop(ours.noise, theirs.drop, rule, width)
    passed, failed = np.zeros(trials, dtype=bool), np.zeros(trials, dtype=bool)
    ok, bad = [], []
    for look in range(1, rule.max_seeds + 1):
        decisions = decide(ours.first(look).statistics, theirs.statistics, rule, len(at.steps), level)
        broken = ~(learns & keeps)[:, :look].all(axis=-1) | np.logical_or.reduce([d.outside for d in decisions])
        good = ~broken & np.logical_and.reduce([d.inside for d in decisions])
        open_ = ~passed & ~failed
        passed, failed = passed | (open_ & good), failed | (open_ & broken)
        ok.append(float(passed.mean()))
        bad.append(float(failed.mean()))
    return Rates(tuple(ok), tuple(bad))
