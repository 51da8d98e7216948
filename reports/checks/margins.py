"""Margins and floors of each statistic on the scale it is compared on (the residual on a logarithmic one)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from matrix.rule import JudgeRule
from reports.stats.intervals import Interval, difference, inside, outside
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


def margins(rule: JudgeRule, steps: int) -> list[Margin]:
    """Margins of every statistic the rule declares. steps: common steps (they bound how well noise can be told)."""
    if rule.delta is None:
        return []
    sign = 1.0 if rule.better == "higher" else -1.0
    return [found for statistic in STATISTICS if (found := _margin(rule, statistic, steps, sign)) is not None]


def _margin(rule: JudgeRule, statistic: str, steps: int, sign: float) -> Margin | None:
    declared = getattr(rule.delta, statistic)
    if declared is None:
        return None
    if statistic == "residual":
        sign, half, floor = -1.0, math.log(declared), residual_log_floor(steps)
    else:
        half, floor = declared, getattr(rule.sd_floor, statistic) if rule.sd_floor else 0.0
    low, high = (-half, half) if rule.sided == "two" else (-half, math.inf) if sign > 0 else (-math.inf, half)
    return Margin(statistic, declared, low, high, floor, sign)


@dataclass(frozen=True)
class Decision:
    """One statistic decided. Arrays over whatever leads the run axis (0-d for a verdict)."""

    margin: Margin
    interval: Interval
    inside: np.ndarray
    outside: np.ndarray
    far_better: np.ndarray


def decide(candidate: dict[str, np.ndarray], baseline: dict[str, np.ndarray], rule: JudgeRule, steps: int, level: float) -> list[Decision]:
    """Decide every statistic. candidate[statistic]: float64[..., n]; baseline[statistic]: float64[..., B] (from `summarise`)."""
    found = []
    for margin in margins(rule, steps):
        interval = difference(candidate[margin.statistic], baseline[margin.statistic], margin.floor, level, rule.spread)
        half = math.log(margin.delta) if margin.statistic == "residual" else margin.delta
        better = interval.low > half if margin.better_sign > 0 else interval.high < -half
        found.append(Decision(margin, interval, inside(interval, margin.low, margin.high), outside(interval, margin.low, margin.high), better))
    return found
