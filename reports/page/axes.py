"""Scales and ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scale:
    """Maps values in [low, high] onto pixels [start, end]; logarithmic (base 10) where `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: np.ndarray | float) -> np.ndarray:
        at = np.asarray(values, dtype=float)
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                at = np.log10(np.where(at > 0, at, np.nan))
        return self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start)


def nice_range(low: float, high: float, log: bool) -> tuple[float, float]:
    """The range widened to round ends."""
    if log:
        bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return 10.0**bottom, 10.0 ** max(top, bottom + 1)
    if low == high:
        return (0.0, 1.0) if low == 0 else (low - abs(low) * 0.1, high + abs(high) * 0.1)
    step = nice_step((high - low) / 5)
    return math.floor(low / step) * step, math.ceil(high / step) * step


def nice_step(rough: float) -> float:
    """The round step (1, 2, 2.5, 5 × 10^k) next above `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)


def ticks(low: float, high: float, log: bool, count: int = 5) -> list[float]:
    """Round values within [low, high]; decades on a logarithmic scale."""
    if log:
        decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
        stride = max(1, math.ceil(len(decades) / (count + 1)))
        return [10.0**decade for decade in decades[::stride]]
    step = nice_step((high - low) / count)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def label(value: float) -> str:
    """A tick's text: short, no needless zeros."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
