"""New curves from a fitted model of learning: what resampling cannot give from few runs, and a check that the answer does not hang on how curves are made.

reward(t) = start + (plateau - start)·(1 - exp(-(t/τ)^κ))          Weibull growth; κ = 1 is exponential saturation
start, plateau and log τ vary from run to run (normal, covariance from the stored runs less what step noise adds to it)
step noise: first-order autoregressive, its standard deviation changing along the curve as the stored runs' does
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.calibrate.resample import moving_mean

LEAST_EXPLAINED = 0.8  # of the variance of the mean curve: below, the model is not this curve's


@dataclass(frozen=True)
class FittedModel:
    """parameters: (start, plateau, τ, κ); factor: float64[3, 3] with factor @ factor.T the covariance of start, plateau, log τ; sd: float64[S]."""

    parameters: tuple[float, float, float, float]
    factor: np.ndarray
    sd: np.ndarray
    correlation: float

    @property
    def mean(self) -> np.ndarray:
        return growth(len(self.sd), *self.parameters)

    def draw(self, rng: np.random.Generator, shape: tuple[int, int], noise_factor: float = 1.0, stretch: float = 1.0) -> np.ndarray:
        """float64[*shape, S] new curves (see `CurveModel`)."""
        start, plateau, tau, kappa = self.parameters
        steps, count = len(self.sd), shape[0] * shape[1]
        own = rng.normal(size=(count, 3)) @ self.factor.T
        at = np.arange(steps) / (tau * stretch * np.exp(np.clip(own[:, 2:], -3, 3)))
        begin = start + own[:, :1]
        curves = begin + (plateau + own[:, 1:2] - begin) * -np.expm1(-(at**kappa))
        return (curves + noise_factor * self.sd * self._noise(rng, count)).reshape(*shape, steps)

    def _noise(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """float64[count, S], unit variance."""
        from scipy.signal import lfilter

        shock = rng.normal(size=(count, len(self.sd)))
        shock[:, 1:] *= np.sqrt(1 - self.correlation**2)
        return lfilter([1.0], [1.0, -self.correlation], shock, axis=-1)


def growth(steps: int, start: float, plateau: float, tau: float, kappa: float) -> np.ndarray:
    """float64[steps]"""
    return start + (plateau - start) * -np.expm1(-((np.arange(steps) / tau) ** kappa))


def fit(values: np.ndarray) -> FittedModel | None:
    """values: float64[B, S], B >= 2. None where growth of this form does not describe the mean curve."""
    mean, steps = values.mean(axis=0), values.shape[1]
    found = _growth_of(mean)
    if found is None:
        return None
    jacobian = _jacobian(steps, found)
    pinv = np.linalg.pinv(jacobian)
    apart = (values - mean) * np.sqrt(len(values) / (len(values) - 1))  # from the runs' own mean: what growth misses of it is no noise
    own = apart @ pinv.T
    noise = apart - own @ jacobian.T
    sd = np.sqrt(np.maximum(moving_mean((noise**2).mean(axis=0), max(3, steps // 10)), 1e-18))
    correlation = float(np.clip((noise[:, 1:] * noise[:, :-1]).sum() / (noise**2).sum(), -0.9, 0.9))
    inflation = (1 + correlation) / (1 - correlation)
    covariance = own.T @ own / len(own) - inflation * (pinv * sd**2) @ pinv.T
    return FittedModel(found, _factor(covariance), sd, correlation)


def _growth_of(mean: np.ndarray) -> tuple[float, float, float, float] | None:
    from scipy.optimize import curve_fit

    steps = len(mean)
    low, high = float(mean.min()), float(mean.max())
    reach = (high - low) or 1.0
    bounds = ([low - reach, low - reach, steps / 200, 0.3], [high + reach, high + reach, 5.0 * steps, 4.0])
    guess = (float(mean[: max(steps // 20, 1)].mean()), float(mean[-max(steps // 4, 1) :].mean()), steps / 5, 1.0)
    try:
        found, _ = curve_fit(lambda at, *parameters: growth(steps, *parameters), np.arange(steps), mean, p0=guess, bounds=bounds)
    except RuntimeError:  # it did not converge
        return None
    left = ((mean - growth(steps, *found)) ** 2).sum()
    total = ((mean - mean.mean()) ** 2).sum()
    return tuple(float(value) for value in found) if left <= (1 - LEAST_EXPLAINED) * total else None  # type: ignore[return-value]


def _jacobian(steps: int, parameters: tuple[float, float, float, float]) -> np.ndarray:
    """float64[steps, 3]: by start, plateau and log τ."""
    start, plateau, tau, kappa = parameters
    power = (np.arange(steps) / tau) ** kappa
    grown = -np.expm1(-power)
    return np.stack([1 - grown, grown, -(plateau - start) * np.exp(-power) * power * kappa], axis=1)


def _factor(covariance: np.ndarray) -> np.ndarray:
    """A square root of a covariance, negative eigenvalues (estimates below zero) taken as none."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))
