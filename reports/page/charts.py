"""What is drawn, before how: series, band, windows. The SVG and the PNG are made from the same chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from matrix.rule import JudgeRule
from reports.checks.context import origin
from reports.metrics import GAP_MAX, GAP_MEAN, REWARD, title
from reports.model import Curve, Run

LOG_METRICS = (GAP_MEAN, GAP_MAX, "train/logprob_gap_p99")
PANELS = (
    GAP_MEAN,
    "train/entropy",
    "train/kl_ref",
    "train/ppo_kl",
    "train/grad_norm",
    "train/loss",
    "rollout/response_len_mean",
    "rollout/truncated_frac",
    "rollout/nll_minus_entropy_z",
    "spec/accept_len",
    "perf/step_s",
    "perf/rollout_s",
    "perf/train_s",
    "perf/weight_sync_s",
    "perf/tokens_per_s",
    "perf/peak_mem_gib",
)
BAND_SD = 2.0
MAX_BINS = 240  # a line of more points is drawn by the lowest and highest value of each bin, so that no spike is lost


@dataclass(frozen=True)
class Series:
    """One line. `group`: 0 is the baseline, candidates count from 1 (colour and dash)."""

    name: str
    steps: np.ndarray
    values: np.ndarray
    group: int

    def drawn(self) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) thinned to at most two points a bin; values that are not finite stay as gaps."""
        if len(self.steps) <= 2 * MAX_BINS:
            return self.steps, self.values
        keep: list[int] = []
        for part in np.array_split(np.arange(len(self.steps)), MAX_BINS):
            values = np.where(np.isfinite(self.values[part]), self.values[part], np.nan)
            ends = {part[0]} if np.isnan(values).all() else {part[int(np.nanargmin(values))], part[int(np.nanargmax(values))]}
            keep += sorted(ends)
        return self.steps[keep], self.values[keep]


@dataclass(frozen=True)
class Band:
    """The baseline's mean and mean ± 2 sd over its runs, step by step."""

    steps: np.ndarray
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray
    runs: int


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
    events: tuple[tuple[int, str], ...] = field(default=())  # restarts

    @property
    def candidates(self) -> list[Series]:
        return [series for series in self.series if series.group > 0]

    def extent(self) -> tuple[float, float, float, float] | None:
        """(first step, last step, lowest, highest) of what can be drawn; None for nothing."""
        steps = [series.steps for series in self.series if len(series.steps)]
        parts = [series.values for series in self.series] + ([self.band.low, self.band.high] if self.band else [])
        values = np.concatenate(parts) if parts else np.empty(0)
        values = values[np.isfinite(values) & ((values > 0) if self.log else True)]
        if not steps or not len(values):
            return None
        return float(min(s[0] for s in steps)), float(max(s[-1] for s in steps)), float(values.min()), float(values.max())


def reward_chart(candidates: Sequence[Run], baseline: Sequence[Run], rule: JudgeRule | None, metric: str = REWARD) -> Chart:
    """The judged metric: every candidate over every baseline run, their band, and the rule's windows."""
    windows: tuple[Window, ...] = ()
    if rule is not None and rule.evidence == "convergence":
        start = min((origin(run.steps) for run in (*candidates, *baseline) if len(run.steps)), default=0)
        end = start + rule.planned_steps - 1
        windows = (Window("first window", start, start + rule.windows.first - 1), Window("last window", end - rule.windows.last + 1, end))
    return chart(metric, candidates, baseline, every_baseline_run=True, windows=windows)


def panels(candidates: Sequence[Run], baseline: Sequence[Run], rule: JudgeRule | None, also: Sequence[str] = ()) -> list[Chart]:
    """One small chart per further metric that a candidate (or, without candidates, the baseline) recorded."""
    shown = candidates or baseline
    names = [name for name in dict.fromkeys((*PANELS, *also)) if any(name in run.curves for run in shown)]
    limit = rule.exactness.logprob_gap_mean_max if rule else None
    return [chart(name, candidates, baseline, limit=("allowed", limit) if limit and name == GAP_MEAN else None) for name in names]


def chart(
    metric: str,
    candidates: Sequence[Run],
    baseline: Sequence[Run],
    *,
    every_baseline_run: bool = False,
    windows: tuple[Window, ...] = (),
    limit: tuple[str, float] | None = None,
) -> Chart:
    """A chart of one metric. The baseline is a band where it has three runs or more, lines otherwise or where every run is wanted."""
    found = band([run.curves[metric] for run in baseline if metric in run.curves])
    series = [_series(run, metric, 0) for run in baseline if metric in run.curves] if every_baseline_run or found is None else []
    series += [_series(run, metric, number) for number, run in enumerate(candidates, start=1) if metric in run.curves]
    log = metric in LOG_METRICS and all((s.values[np.isfinite(s.values)] > 0).any() for s in series)
    return Chart(metric, title(metric), tuple(series), found, windows, log, limit)


def _series(run: Run, metric: str, group: int) -> Series:
    curve = run.curves[metric]
    return Series(run.name, curve.steps, curve.values, group)


def band(curves: Sequence[Curve]) -> Band | None:
    """Mean ± 2 sd on the steps all curves share; None below three curves."""
    if len(curves) < 3:
        return None
    steps = curves[0].steps
    for curve in curves[1:]:
        steps = np.intersect1d(steps, curve.steps, assume_unique=True)
    values = np.array([curve.at(steps) for curve in curves])
    if not len(steps) or not np.isfinite(values).all():
        return None
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    return Band(steps, mean - BAND_SD * sd, mean, mean + BAND_SD * sd, len(curves))
