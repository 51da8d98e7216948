"""Metrics beside the judged one that lie far from the baseline's, and what each is a sign of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from reports.checks.context import Case
from reports.metrics import title
from reports.model import Run
from reports.verdict import Suspect

FAR_SD = 4.0  # baseline standard deviations
LEAST_RUNS = 3
LEAST_SHARE = 0.01  # of the mean: a spread smaller than this is not trusted

SIGNS = {
    "spec/accept_len": "draft model: not updated with its target",
    "rollout/truncated_frac": "end of answers: stop ids or length limit",
    "rollout/response_len_mean": "length of answers: stop ids, length limit or prompt template",
    "train/kl_ref": "distance from the reference: KL term or reference weights",
    "train/ppo_kl": "size of the update: learning rate, clipping or old log-probs",
    "train/grad_norm": "gradient: scale, clipping or reduction over ranks",
    "train/entropy": "entropy: sampling temperature, entropy term or collapse of the policy",
}


def suspects(case: Case) -> Iterator[Suspect]:
    """One suspect a shifted metric, the most shifted first; `strength` is the shift in baseline standard deviations."""
    found = [(strength, metric, text) for metric in SIGNS if (shift := _shift(case, metric)) for strength, text in [shift]]
    for strength, metric, text in sorted(found, reverse=True):
        yield Suspect(name=SIGNS[metric], evidence=text, strength=strength)


def _shift(case: Case, metric: str) -> tuple[float, str] | None:
    theirs = [value for run in case.baseline if (value := mean([run], metric)) is not None]
    ours = mean(case.candidates, metric)
    if ours is None or len(theirs) < LEAST_RUNS:
        return None
    usual = float(np.mean(theirs))
    sd = max(float(np.std(theirs, ddof=1)), 1e-9 + LEAST_SHARE * abs(usual))
    strength = abs(ours - usual) / sd
    return (strength, f"{title(metric)} {ours:.4g} against {usual:.4g}, {strength:.0f} baseline spreads off") if strength > FAR_SD else None


def mean(runs: Sequence[Run], metric: str) -> float | None:
    """Mean over runs of a metric's mean over steps; None where no run has it."""
    values = [found.mean for run in runs if (found := run.facts.get(metric)) is not None and found.mean is not None]
    return float(np.mean(values)) if values else None
