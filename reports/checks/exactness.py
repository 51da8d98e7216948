"""Bands that need no statistics (matrix.rule.Exactness). A band that is set and whose metric is missing is never a pass."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from matrix.outcome import Outcome
from reports.checks.context import Case
from reports.metrics import GAP_MAX, GAP_MEAN, KL_REF, SAMPLER_Z
from reports.model import Run
from reports.verdict import Check


def check(case: Case, comparable: bool = True) -> list[Check]:
    """Every declared band on every readable candidate; the trajectory only where the runs are `comparable` at all."""
    return [item for run in case.candidates if len(run.steps) for item in _of_run(run, case, comparable)]


def _of_run(run: Run, case: Case, comparable: bool) -> Iterator[Check]:
    bands = case.rule.exactness
    if bands.step0_logprob_gap_max is not None:
        yield _at_first_step(run, GAP_MAX, bands.step0_logprob_gap_max, "log-prob gap at the first step", "largest |Δ log p|, trainer against engine")
    if bands.logprob_gap_mean_max is not None:
        yield _largest(run, GAP_MEAN, bands.logprob_gap_mean_max)
    if bands.kl_ref_step0_max is not None:
        yield _at_first_step(run, KL_REF, bands.kl_ref_step0_max, "KL at the first step", "KL to the reference")
    if bands.nll_minus_entropy_z_max is not None:
        yield _sampler(run, bands.nll_minus_entropy_z_max)
    if bands.weight_digests:
        yield digests(run)
    if bands.trajectory is not None and comparable:
        from reports.checks import trajectory

        yield from trajectory.check(run, case)


def _at_first_step(run: Run, metric: str, band: float, name: str, words: str) -> Check:
    curve = run.curves.get(metric)
    if curve is None or not len(curve.steps) or curve.steps[0] != run.steps[0]:
        return _missing(run, name, f"{metric} is not recorded at step {run.steps[0]}", band)
    value = abs(float(curve.values[0]))
    return _band(run, name, value, band, f"{words} is {value:.3g} at step {run.steps[0]}, band {band:g}")


def _largest(run: Run, metric: str, band: float) -> Check:
    curve = run.curves.get(metric)
    if curve is None or len(curve.steps) < len(run.steps):
        have = 0 if curve is None else len(curve.steps)
        return _missing(run, "log-prob gap", f"{metric} is recorded at {have} of {len(run.steps)} steps", band)
    worst = int(np.argmax(np.where(np.isfinite(curve.values), np.abs(curve.values), np.inf)))
    value = abs(float(curve.values[worst]))
    return _band(run, "log-prob gap", value, band, f"largest mean |Δ log p| of a step is {value:.3g} (step {curve.steps[worst]}), band {band:g}")


def _sampler(run: Run, band: float) -> Check:
    """|mean of z over steps|·√steps: standard normal if tokens are drawn from the distribution the trainer assumes."""
    curve = run.curves.get(SAMPLER_Z)
    if curve is None or len(curve.steps) < len(run.steps):
        have = 0 if curve is None else len(curve.steps)
        return _missing(run, "sampler", f"{SAMPLER_Z} is recorded at {have} of {len(run.steps)} steps", band)
    value = sampler_score(curve.values)
    return _band(run, "sampler", value, band, f"sampled tokens are {value:.2f} standard errors from the distribution the trainer assumes, band {band:g}")


def sampler_score(z: np.ndarray) -> float:
    return abs(float(z.mean())) * math.sqrt(len(z))


def digests(run: Run) -> Check:
    """Every weight_sync event of a run says that what the engines received is what was sent."""
    syncs = run.syncs
    if not syncs.total:
        return _missing(run, "weight digests", "no weight_sync event is recorded", None)
    if syncs.bad:
        text = f"{syncs.bad} of {syncs.total} weight syncs without a matching digest, first at version {syncs.first_bad_version}"
        return _result(run, "weight digests", False, text, None, None)
    return _result(run, "weight digests", True, f"digests match in all {syncs.total} weight syncs", float(syncs.total), None)


def _band(run: Run, name: str, value: float, band: float, text: str) -> Check:
    return _result(run, name, value <= band, text, value, band)


def _result(run: Run, name: str, good: bool, text: str, value: float | None, limit: float | None) -> Check:
    return Check(
        stage="exactness", name=name, run=run.name, state="good" if good else "bad", outcome=Outcome.FAIL, text=f"{run.name}: {text}", value=value, limit=limit
    )


def _missing(run: Run, name: str, text: str, limit: float | None) -> Check:
    return Check(
        stage="exactness",
        name=name,
        run=run.name,
        state="missing",
        outcome=Outcome.INVALID,
        text=f"{run.name}: {text}; a missing metric is never a pass",
        limit=limit,
    )
