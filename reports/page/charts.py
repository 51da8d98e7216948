"""What is drawn, before how: series, band, windows. The page's curves and the PNG are made from the same chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from matrix.rule import JudgeRule
from reports.checks.context import origin
from reports.metrics import GAP_MAX, GAP_MEAN, REWARD, title
from reports.model import Curve, Run

LOG_METRICS = (GAP_MEAN, GAP_MAX, "train/logprob_gap_p99")
PANELS = (
    GAP_MEAN,
    "train/kl_ref",
    "train/ppo_kl",
    "train/entropy",
    "rollout/response_len_mean",
    "rollout/truncated_frac",
    "train/grad_norm",
    "spec/accept_len",
    "perf/step_s",
    "perf/weight_sync_s",
    "perf/peak_mem_gib",
    "rollout/nll_minus_entropy_z",
    "train/loss",
    "perf/rollout_s",
    "perf/train_s",
    "perf/tokens_per_s",
)
STEP_TIME = "perf/step_s"
BAND_SD = 2.0
BINS = 240  # a line of more points is drawn by the lowest and highest value of each bin, so that no spike is lost


@dataclass(frozen=True)
class Series:
    """One line. `group`: 0 is the baseline, candidates count from 1 (colour and dash).

    seconds: float64[S] of training until the end of each step, where known.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    group: int
    seconds: np.ndarray | None = None

    def kept(self, bins: int = BINS) -> np.ndarray:
        """int64[≤ 2·bins]: indices of the points that are drawn: all, or the lowest and the highest of each bin; values that are not finite stay as gaps."""
        count = len(self.steps)
        if count <= 2 * bins:
            return np.arange(count)
        keep: list[int] = []
        for part in np.array_split(np.arange(count), bins):
            values = np.where(np.isfinite(self.values[part]), self.values[part], np.nan)
            ends = {int(part[0])} if np.isnan(values).all() else {int(part[np.nanargmin(values)]), int(part[np.nanargmax(values)])}
            keep += sorted(ends)
        return np.array(keep)

    def drawn(self, bins: int = BINS) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of the points that are drawn."""
        at = self.kept(bins)
        return self.steps[at], self.values[at]


@dataclass(frozen=True)
class Band:
    """The baseline's mean and mean ± 2 sd over its runs, step by step."""

    steps: np.ndarray
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray
    runs: int
    seconds: np.ndarray | None = None


@dataclass(frozen=True)
class Window:
    """A shaded range of steps, ends included."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Chart:
    """One set of axes."""

    metric: str
    title: str
    series: tuple[Series, ...]
    band: Band | None = None
    windows: tuple[Window, ...] = ()
    log: bool = False
    limit: tuple[str, float] | None = None  # a band of the rule, drawn as a line

    @property
    def candidates(self) -> list[Series]:
        return [series for series in self.series if series.group > 0]

    @property
    def baseline(self) -> list[Series]:
        return [series for series in self.series if series.group == 0]

    @property
    def drawable(self) -> bool:
        """Whether there is a finite value."""
        return any(np.isfinite(series.values).any() for series in self.series)


class Side:
    """Runs of one side, and what is computed of them once for all charts."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self._clocks: dict[int, Curve | None] = {}
        self._bands: dict[str, Band | None] = {}

    def clock(self, number: int) -> Curve | None:
        """Seconds of training until the end of each step of one run, the sum of its step times; None where a step has none."""
        if number not in self._clocks:
            run = self.runs[number]
            found = run.curves.get(STEP_TIME)
            whole = found is not None and len(found.steps) == len(run.steps) and bool(np.isfinite(found.values).all())
            self._clocks[number] = Curve(found.steps, np.cumsum(found.values)) if found is not None and whole else None
        return self._clocks[number]

    def band(self, metric: str) -> Band | None:
        """Mean ± 2 sd on the steps all runs share; None below three runs."""
        if metric not in self._bands:
            having = [number for number, run in enumerate(self.runs) if metric in run.curves]
            self._bands[metric] = _band([self.runs[number].curves[metric] for number in having], [self.clock(number) for number in having])
        return self._bands[metric]

    def series(self, number: int, metric: str, group: int) -> Series:
        run, curve, clock = self.runs[number], self.runs[number].curves[metric], self.clock(number)
        return Series(run.name, curve.steps, curve.values, group, _at(clock, curve.steps) if clock else None)

    def lines(self, metric: str, first_group: int | None) -> list[Series]:
        """A line of every run that has the metric; `first_group` None: all are baseline."""
        return [self.series(number, metric, 0 if first_group is None else first_group + number) for number, run in enumerate(self.runs) if metric in run.curves]


def reward_chart(candidates: Side, baseline: Side, rule: JudgeRule | None, metric: str = REWARD) -> Chart:
    """The judged metric: every candidate over every baseline run, their band, and the rule's windows."""
    windows: tuple[Window, ...] = ()
    if rule is not None and rule.evidence == "convergence":
        start = min((origin(run.steps) for run in (*candidates.runs, *baseline.runs) if len(run.steps)), default=0)
        end = start + rule.planned_steps - 1
        windows = (Window("first window", start, start + rule.windows.first - 1), Window("last window", end - rule.windows.last + 1, end))
    return chart(metric, candidates, baseline, every_baseline_run=True, windows=windows)


def panels(candidates: Side, baseline: Side, rule: JudgeRule | None, also: Sequence[str] = ()) -> list[Chart]:
    """One small chart per further metric that a candidate (or, without candidates, the baseline) recorded."""
    shown = candidates.runs or baseline.runs
    names = [name for name in dict.fromkeys((*PANELS, *also)) if any(name in run.curves for run in shown)]
    limit = rule.exactness.logprob_gap_mean_max if rule else None
    return [chart(name, candidates, baseline, limit=("allowed", limit) if limit and name == GAP_MEAN else None) for name in names]


def chart(
    metric: str,
    candidates: Side,
    baseline: Side,
    *,
    every_baseline_run: bool = False,
    windows: tuple[Window, ...] = (),
    limit: tuple[str, float] | None = None,
) -> Chart:
    """A chart of one metric. The baseline is a band where it has three runs or more, lines otherwise or where every run is wanted."""
    found = baseline.band(metric)
    series = baseline.lines(metric, None) if every_baseline_run or found is None else []
    series += candidates.lines(metric, 1)
    log = metric in LOG_METRICS and all((s.values[np.isfinite(s.values)] > 0).any() for s in series)
    return Chart(metric, title(metric), tuple(series), found, windows, log, limit)


def _band(curves: Sequence[Curve], clocks: Sequence[Curve | None]) -> Band | None:
    if len(curves) < 3:
        return None
    steps = curves[0].steps
    same = all(len(curve.steps) == len(steps) and np.array_equal(curve.steps, steps) for curve in curves[1:])
    if not same:
        for curve in curves[1:]:
            steps = np.intersect1d(steps, curve.steps, assume_unique=True)
    values = np.array([curve.values if same else curve.at(steps) for curve in curves])
    if not len(steps) or not np.isfinite(values).all():
        return None
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    times = [_at(clock, steps) for clock in clocks if clock is not None]
    seconds = np.mean([time for time in times if time is not None], axis=0) if len(times) == len(curves) and all(t is not None for t in times) else None
    return Band(steps, mean - BAND_SD * sd, mean, mean + BAND_SD * sd, len(curves), seconds)


def _at(clock: Curve, steps: np.ndarray) -> np.ndarray | None:
    if steps is clock.steps or np.array_equal(steps, clock.steps):
        return clock.values
    try:
        return clock.at(steps)
    except KeyError:
        return None
