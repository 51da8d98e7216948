"""The confidence interval of a difference of run-level means, and where it lies against its margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

Spread = Literal["welch", "larger"]  # whose spread an interval of several candidates is built with (matrix.rule.JudgeRule.spread)


@dataclass(frozen=True)
class Interval:
    """Arrays of one shape (0-d for one comparison): difference, its standard error, degrees of freedom, and the interval's ends."""

    difference: np.ndarray
    se: np.ndarray
    df: np.ndarray
    low: np.ndarray
    high: np.ndarray


def t_quantile(probability: float | np.ndarray, df: float | np.ndarray) -> np.ndarray:
    """Quantile of Student's t; df may be fractional."""
    return special.stdtrit(df, probability)


def t_tail(value: np.ndarray, df: np.ndarray) -> np.ndarray:
    """P(T > value) for Student's t with `df` degrees of freedom."""
    return special.stdtr(df, -value)


def run_sd(values: np.ndarray) -> np.ndarray:
    """Sample standard deviation over the last axis (runs); NaN for one run."""
    if values.shape[-1] < 2:
        return np.full(values.shape[:-1], np.nan)
    return values.std(axis=-1, ddof=1)


def standard_error(candidate: np.ndarray, baseline: np.ndarray, floor: float, spread: Spread) -> tuple[np.ndarray, np.ndarray]:
    """(standard error, degrees of freedom) of mean(candidate) - mean(baseline). candidate: float64[..., n]; baseline: float64[..., B].

    n = 1: the candidate is taken to vary as the baseline does, se = s_B·√(1 + 1/B), B-1 degrees of freedom.
    n >= 2, "welch": Welch (1947), each side with its own spread, Welch-Satterthwaite degrees of freedom.
    n >= 2, "larger": se = max(s_B, s_C)·√(1/n + 1/B), B-1 degrees of freedom: as n = 1, unless the candidates vary more.
    No spread counts as less than `floor`.
    """
    n, b = candidate.shape[-1], baseline.shape[-1]
    s_b = np.maximum(run_sd(baseline), floor)
    baseline_df = np.full(s_b.shape, float(b - 1))
    if n == 1:
        return s_b * np.sqrt(1 + 1 / b), baseline_df
    s_c = np.maximum(run_sd(candidate), floor)
    if spread == "larger":
        return np.maximum(s_b, s_c) * np.sqrt(1 / n + 1 / b), baseline_df
    part_c, part_b = s_c**2 / n, s_b**2 / b
    with np.errstate(divide="ignore", invalid="ignore"):
        df = (part_c + part_b) ** 2 / (part_c**2 / (n - 1) + part_b**2 / max(b - 1, 1))
    return np.sqrt(part_c + part_b), df


def difference(candidate: np.ndarray, baseline: np.ndarray, floor: float, level: float, spread: Spread) -> Interval:
    """Two-ended interval with error `level` at each end. NaN in a run, one baseline run or no spread at all gives NaN ends."""
    delta = candidate.mean(axis=-1) - baseline.mean(axis=-1)
    se, df = standard_error(candidate, baseline, floor, spread)
    with np.errstate(invalid="ignore"):
        half = np.where((se > 0) & (df > 0), t_quantile(1 - level, np.maximum(df, 1e-9)) * se, np.nan)
    return Interval(delta, se, df, delta - half, delta + half)


def inside(interval: Interval, low: float, high: float) -> np.ndarray:
    """True where the whole interval lies within (low, high). Written as "good if": NaN is never inside."""
    return (interval.low > low) & (interval.high < high)


def outside(interval: Interval, low: float, high: float) -> np.ndarray:
    """True where no part of the interval lies within [low, high]. What is not finite is never outside: undefined says nothing of the curve."""
    return np.isfinite(interval.low) & np.isfinite(interval.high) & ((interval.high < low) | (interval.low > high))
