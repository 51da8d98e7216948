"""Run-level statistics: what a whole curve is summarised by. The unit of every comparison is the run, never the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from matrix.rule import JudgeRule

STATISTICS = ("first", "last", "whole", "residual")
TITLES = {"first": "first window", "last": "last window", "whole": "whole curve", "residual": "noise within a run"}


@dataclass(frozen=True)
class Grid:
    """The steps runs are compared on, and which of them the windows hold.

    steps: int64[S]; first, last: bool[S].
    """

    steps: np.ndarray
    first: np.ndarray
    last: np.ndarray


def grid(steps: np.ndarray, rule: JudgeRule, start: int) -> Grid:
    """Windows on `steps` (int64[S], the common ones) of a run that begins at step `start` (0 or 1) and is planned for `rule.planned_steps`."""
    end = start + rule.planned_steps
    return Grid(steps, steps < start + rule.windows.first, steps >= end - rule.windows.last)


def summarise(values: np.ndarray, at: Grid) -> dict[str, np.ndarray]:
    """Statistics of curves. values: float64[..., S] on `at.steps`; each result is float64[...].

    `residual` is the natural logarithm of the within-run residual standard deviation, so that a difference is a ratio of noises.
    NaN where a window is empty or a value is NaN: the caller must treat it as undefined, never as inside a margin.
    """
    return {
        "first": _mean(values[..., at.first]),
        "last": _mean(values[..., at.last]),
        "whole": _mean(values),
        "residual": np.log(_positive(residual_sd(values))),
    }


def _mean(values: np.ndarray) -> np.ndarray:
    return values.mean(axis=-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan)


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)


def residual_sd(values: np.ndarray) -> np.ndarray:
    """Noise of a curve around its own local trend: Gasser, Sroka and Jennen-Steinmetz (1986) pseudo-residuals, blind to level and slope.

    values: float64[..., S], S >= 3; s² = 2/(3(S-2)) Σ (x[i-1]/2 - x[i] + x[i+1]/2)². NaN for shorter curves.
    """
    if values.shape[-1] < 3:
        return np.full(values.shape[:-1], np.nan)
    pseudo = values[..., :-2] / 2 - values[..., 1:-1] + values[..., 2:] / 2
    return np.sqrt((pseudo**2).sum(axis=-1) * 2 / (3 * pseudo.shape[-1]))


def residual_log_floor(steps: int) -> float:
    """Sampling error of log(residual_sd) under white noise: ½·√(35/(9·S)) (variance of the estimator, same paper). No fewer runs can tell it better."""
    return 0.5 * math.sqrt(35 / (9 * max(steps, 1)))


def gain(values: np.ndarray, at: Grid) -> np.ndarray:
    """float64[...]: mean of the last window minus mean of the first."""
    return _mean(values[..., at.last]) - _mean(values[..., at.first])


def drop_from_best(values: np.ndarray, width: int) -> np.ndarray:
    """float64[...]: best mean of `width` neighbouring values minus the mean of the last `width`; 0 for a curve that ends at its best, NaN if shorter."""
    if values.shape[-1] < width:
        return np.full(values.shape[:-1], np.nan)
    sums = np.cumsum(np.concatenate([np.zeros((*values.shape[:-1], 1)), values], axis=-1), axis=-1)
    means = (sums[..., width:] - sums[..., :-width]) / width
    return means.max(axis=-1) - means[..., -1]


def best_window_end(values: np.ndarray, width: int) -> int:
    """Index of the last value of the best window of `width` values in a curve float64[S]."""
    return int(np.argmax(np.convolve(values, np.ones(width) / width, mode="valid"))) + width - 1
