"""What the candidates cost against the baseline: ratios of medians, advisory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reports.checks.context import Case
from reports.metrics import RESOURCES, title
from reports.model import Run
from reports.verdict import Resource

ADVISORY = 1.25  # a cost this many times the baseline's is pointed out


def compare(case: Case) -> list[Resource]:
    """One entry a cost that both sides record. Machines differ: a ratio says something only where both ran on the same kind."""
    found = []
    for metric, more_is_worse in RESOURCES.items():
        ours, theirs = _median(case.candidates, metric), _median(case.baseline, metric)
        if ours is None or theirs is None or not theirs:
            continue
        ratio = ours / theirs
        worse = ratio > ADVISORY if more_is_worse else ratio < 1 / ADVISORY
        found.append(
            Resource(
                metric=metric, candidate=ours, baseline=theirs, ratio=ratio, worse=worse, text=f"{title(metric)}: {ours:.4g} against {theirs:.4g}, {ratio:.2f}×"
            )
        )
    return found


def _median(runs: Sequence[Run], metric: str) -> float | None:
    """Median over the runs of each run's median step."""
    values = [found.median for run in runs if (found := run.facts.get(metric)) is not None and found.median is not None]
    return float(np.median(values)) if values else None
