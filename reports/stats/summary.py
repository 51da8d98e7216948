"""Run-level statistics: what a whole curve is summarised by. The unit of every comparison is the run, never the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from matrix.rule import JudgeRule

STATISTICS = ("first", "last", "whole", "residual")
LONGEST_FIT = 20  # steps, rounded up to an odd number
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
    """Noise of a curve around its own local trend: root mean square distance to a Savitzky-Golay (1964) fit, a parabola over 21 steps (a third of
    a shorter curve).

    values: float64[..., S]. Corrected for what the fit takes up, so that white noise gives its own standard deviation. NaN below 6 steps.
    """
    steps = values.shape[-1]
    if steps < 6:
        return np.full(values.shape[:-1], np.nan)
    width = max(5, min(LONGEST_FIT, steps // 3) // 2 * 2 + 1)
    hat, half = _parabola(width), width // 2
    inner = np.lib.stride_tricks.sliding_window_view(values, width, axis=-1) @ hat[half]
    begin, end = values[..., :width] @ hat[:half].T, values[..., -width:] @ hat[half + 1 :].T
    residual = values - np.concatenate([begin, inner, end], axis=-1)
    return np.sqrt((residual**2).mean(axis=-1) / (1 - hat[half, half]))


@lru_cache(maxsize=16)
def _parabola(width: int) -> np.ndarray:
    """float64[width, width]: row i maps the values of a window to the least-squares parabola's value at i."""
    at = np.linspace(-1, 1, width)
    basis = np.stack([np.ones(width), at, at**2], axis=1)
    return basis @ np.linalg.pinv(basis)


def residual_log_floor(steps: int) -> float:
    """Sampling error of the logarithm of a standard deviation from S normal values, 1/√(2S): no number of runs can tell noise better than that."""
    return 1 / math.sqrt(2 * max(steps, 1))


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


def steps_to(values: np.ndarray, steps: np.ndarray, threshold: float, width: int, rising: bool, never: float) -> np.ndarray:
    """float64[...]: steps done when the mean of the last `width` values is first at or beyond `threshold`; `never` for a curve that does not get there.

    values: float64[..., S] at `steps` (int64[S]). A moving mean, so that one lucky step is not taken for arrival. NaN if shorter than `width`, or with a NaN.
    """
    if values.shape[-1] < width or width < 1:
        return np.full(values.shape[:-1], np.nan)
    means = np.lib.stride_tricks.sliding_window_view(values, width, axis=-1).mean(axis=-1)
    there = means >= threshold if rising else means <= threshold
    first = steps[np.argmax(there, axis=-1) + width - 1] - steps[0] + 1.0
    return np.where(np.isnan(values).any(axis=-1), np.nan, np.where(there.any(axis=-1), first, never))
