"""Margins and floors of each statistic on the scale it is compared on (the residual on a logarithmic one)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from matrix.rule import JudgeRule, Secondary
from reports.stats.intervals import Interval, Pool, beyond, difference, inside, outside, paired_difference
from reports.stats.summary import STATISTICS, residual_log_floor


@dataclass(frozen=True)
class Margin:
    """One statistic's acceptable range of the difference, (low, high); infinite where one-sided. `delta` as declared."""

    statistic: str
    delta: float
    low: float
    high: float
    floor: float
    better_sign: float  # +1 where a larger difference is better, -1 where a smaller one is

    @property
    def half(self) -> float:
        """δ on the scale of the comparison."""
        return math.log(self.delta) if self.statistic == "residual" else self.delta


def margins(rule: JudgeRule, steps: int) -> list[Margin]:
    """Margins of every statistic the rule declares. steps: common steps (they bound how well noise can be told)."""
    if rule.delta is None:
        return []
    sign = _sign(rule.better)
    return [found for statistic in STATISTICS if (found := _primary(rule, statistic, steps, sign)) is not None]


def secondary_margin(item: Secondary, rule: JudgeRule) -> Margin:
    return _margin(rule, item.name, item.delta, item.delta, item.sd_floor or 0.0, _sign(item.better))


def _primary(rule: JudgeRule, statistic: str, steps: int, sign: float) -> Margin | None:
    declared = getattr(rule.delta, statistic)
    if declared is None:
        return None
    if statistic == "residual":
        return _margin(rule, statistic, declared, math.log(declared), residual_log_floor(steps), -1.0)
    return _margin(rule, statistic, declared, declared, getattr(rule.sd_floor, statistic) if rule.sd_floor else 0.0, sign)


def _margin(rule: JudgeRule, statistic: str, declared: float, half: float, floor: float, sign: float) -> Margin:
    low, high = (-half, half) if rule.sided == "two" else (-half, math.inf) if sign > 0 else (-math.inf, half)
    return Margin(statistic, declared, low, high, floor, sign)


def _sign(better: str) -> float:
    return 1.0 if better == "higher" else -1.0


@dataclass(frozen=True)
class Decision:
    """One statistic decided. Arrays over whatever leads the run axis (0-d for a verdict). `p_outside`: see `intervals.beyond`."""

    margin: Margin
    interval: Interval
    inside: np.ndarray
    outside: np.ndarray
    far_better: np.ndarray
    p_outside: np.ndarray


def decide(
    candidate: Mapping[str, np.ndarray],
    baseline: Mapping[str, np.ndarray],
    rule: JudgeRule,
    steps: int,
    level: float,
    pools: Mapping[str, Pool | None] | None = None,
) -> list[Decision]:
    """Decide every primary statistic. candidate[statistic]: float64[..., n]; baseline[statistic]: float64[..., B] (from `summarise`)."""
    pools = pools or {}
    return [decide_one(m, candidate[m.statistic], baseline[m.statistic], rule, level, pools.get(m.statistic)) for m in margins(rule, steps)]


def decide_one(margin: Margin, candidate: np.ndarray, baseline: np.ndarray, rule: JudgeRule, level: float, pool: Pool | None = None) -> Decision:
    """Decide one statistic; where the rule is paired both sides are float64[..., n], pair by pair."""
    if rule.paired:
        interval = paired_difference(candidate, baseline, margin.floor, level)
    else:
        interval = difference(candidate, baseline, margin.floor, level, rule.spread, pool)
    better = interval.low > margin.half if margin.better_sign > 0 else interval.high < -margin.half
    ends = margin.low, margin.high
    return Decision(margin, interval, inside(interval, *ends), outside(interval, *ends), better, beyond(interval, *ends))
