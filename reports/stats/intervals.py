"""The confidence interval of a difference of run-level means, and where it lies against its margin."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True)
class Pool:
    """What the other baselines of a recipe family add to the estimate of one statistic's spread: their degrees of freedom and pooled variance."""

    df: float
    variance: float


def combined(candidate_sd: np.ndarray | None, n: int, baseline_sd: np.ndarray, b: int, baseline_df: float, spread: Spread) -> tuple[np.ndarray, np.ndarray]:
    """(standard error, degrees of freedom) of mean(n candidates) - mean(b baseline runs).

    n = 1 (no candidate_sd): the candidate is taken to vary as the baseline does, se = s_B·√(1 + 1/B), the baseline's degrees of freedom.
    n >= 2, "welch": Welch (1947), each side with its own spread, Welch-Satterthwaite degrees of freedom.
    n >= 2, "larger": se = max(s_B, s_C)·√(1/n + 1/B), the baseline's degrees of freedom: as n = 1, unless the candidates vary more.
    """
    df = np.full(np.shape(baseline_sd), float(baseline_df))
    if candidate_sd is None:
        return baseline_sd * np.sqrt(1 / n + 1 / b), df
    if spread == "larger":
        return np.maximum(baseline_sd, candidate_sd) * np.sqrt(1 / n + 1 / b), df
    part_c, part_b = candidate_sd**2 / n, baseline_sd**2 / b
    with np.errstate(divide="ignore", invalid="ignore"):
        df = (part_c + part_b) ** 2 / (part_c**2 / (n - 1) + part_b**2 / max(baseline_df, 1))
    return np.sqrt(part_c + part_b), df


def standard_error(candidate: np.ndarray, baseline: np.ndarray, floor: float, spread: Spread, pool: Pool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """`combined` of runs. candidate: float64[..., n]; baseline: float64[..., B]. No spread counts as less than `floor`; `pool` joins the baseline's."""
    n, b = candidate.shape[-1], baseline.shape[-1]
    s_b, df_b = run_sd(baseline), float(b - 1)
    if pool is not None and pool.df > 0:
        own = np.where(df_b > 0, s_b**2 * df_b, 0.0)
        s_b, df_b = np.sqrt((own + pool.variance * pool.df) / (df_b + pool.df)), df_b + pool.df
    s_c = None if n == 1 else np.maximum(run_sd(candidate), floor)
    return combined(s_c, n, np.maximum(s_b, floor), b, df_b, spread)


def pooled(groups: Sequence[tuple[int, float]]) -> Pool | None:
    """Pool of (degrees of freedom, variance about the group's own mean) of other baselines; None where they add nothing."""
    used = [(df, variance) for df, variance in groups if df > 0]
    df = sum(df for df, _ in used)
    return Pool(float(df), sum(df * variance for df, variance in used) / df) if df else None


def difference(candidate: np.ndarray, baseline: np.ndarray, floor: float, level: float, spread: Spread, pool: Pool | None = None) -> Interval:
    """Two-ended interval with error `level` at each end. NaN in a run, one baseline run or no spread at all gives NaN ends."""
    delta = candidate.mean(axis=-1) - baseline.mean(axis=-1)
    return _interval(delta, *standard_error(candidate, baseline, floor, spread, pool), level)


def paired_difference(candidate: np.ndarray, baseline: np.ndarray, floor: float, level: float) -> Interval:
    """As `difference`, of pairs (equal shapes float64[..., n]): the spread of the n differences, n-1 degrees of freedom; NaN ends for one pair."""
    apart = candidate - baseline
    n = apart.shape[-1]
    return _interval(apart.mean(axis=-1), np.maximum(run_sd(apart), floor) / np.sqrt(n), np.full(apart.shape[:-1], float(n - 1)), level)


def _interval(delta: np.ndarray, se: np.ndarray, df: np.ndarray, level: float) -> Interval:
    with np.errstate(invalid="ignore"):
        half = np.where((se > 0) & (df > 0), t_quantile(1 - level, np.maximum(df, 1e-9)) * se, np.nan)
    return Interval(delta, se, df, delta - half, delta + half)


def beyond(interval: Interval, low: float, high: float) -> np.ndarray:
    """p-value of the claim that the true difference lies within [low, high], against outside: small where the interval is far outside; NaN where undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        above = t_tail((interval.difference - high) / interval.se, interval.df) if np.isfinite(high) else np.ones(np.shape(interval.se))
        below = t_tail((low - interval.difference) / interval.se, interval.df) if np.isfinite(low) else np.ones(np.shape(interval.se))
    return np.where((interval.se > 0) & (interval.df > 0), np.minimum(above, below), np.nan)


def inside(interval: Interval, low: float, high: float) -> np.ndarray:
    """True where the whole interval lies within (low, high). Written as "good if": NaN is never inside."""
    return (interval.low > low) & (interval.high < high)


def outside(interval: Interval, low: float, high: float) -> np.ndarray:
    """True where no part of the interval lies within [low, high]. What is not finite is never outside: undefined says nothing of the curve."""
    return np.isfinite(interval.low) & np.isfinite(interval.high) & ((interval.high < low) | (interval.low > high))
