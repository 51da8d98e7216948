"""The level of each look, so that looking up to three times keeps the overall error.

A verdict may be asked for after one, two and three candidate runs against the same B baseline runs, and stops at the first PASS or FAIL. At a candidate whose
true difference is exactly δ each look errs with its own probability; together they would err more often than α. The looks share runs, so their errors
are correlated, and Welch's interval of two runs errs more often than it says, so the common level α' is computed: the α-quantile of the smallest of the
looks' p-values under a true difference of δ and equal spreads.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import special

from reports.stats.intervals import Spread, combined, t_tail

POINTS_LOG2 = 16  # 65 536 quasi-random points: the level is good to about a thousandth of itself, and the same on every machine


@lru_cache(maxsize=256)
def level_per_look(baseline_runs: int, looks: int, alpha: float, spread: Spread = "welch", df: float | None = None) -> float:
    """One-sided error α' each look's interval is built with. `df`: of the baseline's spread where other baselines add to it (else B-1).

    Raises ValueError below two baseline runs or outside 1 to 3 looks.
    """
    if baseline_runs < 2:
        raise ValueError(f"{baseline_runs} baseline run(s): a spread needs two")
    _check_looks(looks)
    if looks == 1:
        return alpha
    return min(float(np.quantile(_smallest_p(baseline_runs, looks, spread, df or baseline_runs - 1), alpha)), alpha)


@lru_cache(maxsize=16)
def paired_level_per_look(looks: int, alpha: float) -> float:
    """As `level_per_look`, for pairs: looks at n = 2..looks pairs (one pair has no spread, so it decides nothing)."""
    _check_looks(looks)
    if looks < 3:
        return alpha
    differences = special.ndtri(_points(looks))
    p_values = []
    for n in range(2, looks + 1):
        shown = differences[:, :n]
        spread = np.maximum(shown.std(axis=-1, ddof=1), 1e-12)  # a point of the grid may have two equal coordinates
        p_values.append(t_tail(shown.mean(axis=-1) / (spread / np.sqrt(n)), np.full(len(shown), n - 1.0)))
    return min(float(np.quantile(np.minimum.reduce(p_values), alpha)), alpha)


def _check_looks(looks: int) -> None:
    if looks not in (1, 2, 3):
        raise ValueError(f"{looks} looks: 1 to 3 are allowed")


def _points(dimensions: int) -> np.ndarray:
    """float64[points, dimensions] in the open unit cube."""
    from scipy.stats import qmc  # half a second to import: only where a level is computed

    return qmc.Sobol(dimensions, scramble=False).random_base2(POINTS_LOG2) + 2.0 ** -(POINTS_LOG2 + 1)


def _smallest_p(baseline_runs: int, looks: int, spread: Spread, df: float) -> np.ndarray:
    """float64[points]: the smallest one-sided p-value over looks n = 1..looks when the null holds and every run varies alike.

    A normal sample enters only through its mean and variance, which are independent (chi-squared): so B runs cost two dimensions.
    """
    uniform = _points(2 + looks)
    mean_b = special.ndtri(uniform[:, 0]) / np.sqrt(baseline_runs)
    sd_b = np.sqrt(2 * special.gammaincinv(df / 2, uniform[:, 1]) / df)
    candidates = special.ndtri(uniform[:, 2:])
    p_values = []
    for n in range(1, looks + 1):
        shown = candidates[:, :n]
        se, freedom = combined(None if n == 1 else shown.std(axis=-1, ddof=1), n, sd_b, baseline_runs, df, spread)
        p_values.append(t_tail((shown.mean(axis=-1) - mean_b) / se, freedom))
    return np.minimum.reduce(p_values)
