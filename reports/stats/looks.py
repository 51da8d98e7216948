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

from reports.stats.intervals import Spread, standard_error, t_tail

POINTS_LOG2 = 16  # 65 536 quasi-random points: the level is good to about a thousandth of itself, and the same on every machine


@lru_cache(maxsize=256)
def level_per_look(baseline_runs: int, looks: int, alpha: float, spread: Spread = "welch") -> float:
    """One-sided error α' each look's interval is built with. Raises ValueError below two baseline runs or outside 1 to 3 looks."""
    if baseline_runs < 2:
        raise ValueError(f"{baseline_runs} baseline run(s): a spread needs two")
    if looks not in (1, 2, 3):
        raise ValueError(f"{looks} looks: 1 to 3 are allowed")
    if looks == 1:
        return alpha
    return min(float(np.quantile(_smallest_p(baseline_runs, looks, spread), alpha)), alpha)


def _smallest_p(baseline_runs: int, looks: int, spread: Spread) -> np.ndarray:
    """float64[points]: the smallest one-sided p-value over looks n = 1..looks when the null holds and every run varies alike.

    A normal sample enters only through its mean and variance, which are independent (chi-squared): so B runs cost two dimensions.
    """
    from scipy.stats import qmc  # half a second to import: only where a level is computed

    uniform = qmc.Sobol(2 + looks, scramble=False).random_base2(POINTS_LOG2) + 2.0 ** -(POINTS_LOG2 + 1)
    mean_b = special.ndtri(uniform[:, 0]) / np.sqrt(baseline_runs)
    sd_b = np.sqrt(2 * special.gammaincinv((baseline_runs - 1) / 2, uniform[:, 1]) / (baseline_runs - 1))
    baseline = _two_points(mean_b, sd_b, baseline_runs)
    candidates = special.ndtri(uniform[:, 2:])
    p_values = [_p_value(candidates[:, :n], baseline, spread) for n in range(1, looks + 1)]
    return np.minimum.reduce(p_values)


def _two_points(mean: np.ndarray, sd: np.ndarray, runs: int) -> np.ndarray:
    """float64[points, runs] samples with exactly this mean and standard deviation: what the runs are beyond that does not matter."""
    shape = np.linspace(-1, 1, runs)
    shape /= shape.std(ddof=1)
    return mean[:, None] + sd[:, None] * shape


def _p_value(candidate: np.ndarray, baseline: np.ndarray, spread: Spread) -> np.ndarray:
    se, df = standard_error(candidate, baseline, 0.0, spread)
    return t_tail((candidate.mean(axis=-1) - baseline.mean(axis=-1)) / se, df)
