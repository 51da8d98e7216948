"""New curves in the likeness of stored ones, resampled by run and by blocks of residuals.

A curve is the runs' mean, plus a smooth deviation that belongs to the run (what makes runs differ), plus noise of single steps. A new curve takes the smooth
deviation of one stored run, its sign at random, and the noise of stored runs in blocks, each block from a run of its own, at the steps where it was seen: so
noise keeps its short correlations and may change along the curve. Both are widened by √(B/(B-1)), because deviations from an estimated mean are too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

SMOOTH_SHARE = 10  # the smooth part is a moving mean over a tenth of the steps
BLOCK = 5  # steps


class CurveModel(Protocol):
    """mean: float64[S]. `draw` gives float64[*shape, S] new curves: learning `stretch` times slower, step noise times `noise_factor`."""

    @property
    def mean(self) -> np.ndarray: ...

    def draw(self, rng: np.random.Generator, shape: tuple[int, int], noise_factor: float = 1.0, stretch: float = 1.0) -> np.ndarray: ...


@dataclass(frozen=True)
class BlockModel:
    """mean: float64[S]; smooth, noise: float64[B, S]."""

    mean: np.ndarray
    smooth: np.ndarray
    noise: np.ndarray

    @property
    def runs(self) -> int:
        return len(self.smooth)

    def draw(self, rng: np.random.Generator, shape: tuple[int, int], noise_factor: float = 1.0, stretch: float = 1.0) -> np.ndarray:
        """float64[*shape, S] new curves. `stretch`: learning so many times slower (the mean curve at step/stretch). `noise_factor`: of the step noise."""
        count = shape[0] * shape[1]
        steps = len(self.mean)
        sign = rng.choice([-1.0, 1.0], size=(count, 1))
        deviation = self.smooth[rng.integers(self.runs, size=count)] * sign
        blocks = -(-steps // BLOCK)
        source = np.repeat(rng.integers(self.runs, size=(count, blocks)), BLOCK, axis=1)[:, :steps]
        flips = np.repeat(rng.choice([-1.0, 1.0], size=(count, blocks)), BLOCK, axis=1)[:, :steps]
        noise = self.noise[source, np.arange(steps)] * flips * noise_factor
        return (self.slowed(stretch) + deviation + noise).reshape(*shape, steps)

    def slowed(self, stretch: float) -> np.ndarray:
        """float64[S]: the (smoothed) mean curve as it would be with learning `stretch` times slower; the mean itself at 1."""
        if stretch == 1.0:
            return self.mean
        at = np.arange(len(self.mean))
        return np.interp(at / stretch, at, moving_mean(self.mean, _width(len(self.mean))))


def fit(values: np.ndarray) -> BlockModel:
    """values: float64[B, S], B >= 2."""
    mean = values.mean(axis=0)
    deviation = (values - mean) * np.sqrt(len(values) / (len(values) - 1))
    smooth = np.array([moving_mean(row, _width(values.shape[1])) for row in deviation])
    return BlockModel(mean, smooth, deviation - smooth)


def _width(steps: int) -> int:
    return max(3, steps // SMOOTH_SHARE)


def moving_mean(values: np.ndarray, width: int) -> np.ndarray:
    """float64[S]: centred moving mean; near the ends over the values there are."""
    kernel = np.ones(width)
    return np.convolve(values, kernel, mode="same") / np.convolve(np.ones_like(values), kernel, mode="same")
