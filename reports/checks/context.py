"""What every check is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from matrix.rule import JudgeRule
from reports.model import Curve, Run
from reports.stats.summary import Grid, grid
from reports.verdict import Declared, Ending, PoolGroup


@dataclass(frozen=True)
class Case:
    """Candidates, baseline, the rule and the claim; and what they come to on common steps."""

    candidates: Sequence[Run]
    baseline: Sequence[Run]
    rule: JudgeRule
    declared: Declared = field(default_factory=Declared)
    pool: Sequence[PoolGroup] = ()
    endings: Sequence[Ending] = ()

    @property
    def sign(self) -> float:
        """+1 where a higher metric is better, else -1."""
        return 1.0 if self.rule.better == "higher" else -1.0

    def curve(self, run: Run) -> Curve:
        """The judged metric of a run; an empty curve where it has none."""
        return run.curves.get(self.rule.metric, EMPTY)

    @cached_property
    def common(self) -> np.ndarray:
        """int64[S]: steps at which every run has the judged metric. Curves on other steps are never interpolated."""
        return common_steps([self.curve(run) for run in (*self.candidates, *self.baseline)])

    @cached_property
    def grid(self) -> Grid:
        return self.windows(self.common)

    def windows(self, steps: np.ndarray) -> Grid:
        """The rule's windows on `steps`; a run that stopped early, where the rule allows it, ends with its last step."""
        return grid(steps, self.rule_to(steps), self.origin)

    def rule_to(self, steps: np.ndarray) -> JudgeRule:
        """The rule, planned to end with `steps` where it allows runs to stop early and they did."""
        made = int(steps[-1]) - self.origin + 1 if len(steps) else 0
        return self.rule.model_copy(update={"planned_steps": made}) if self.rule.early_stop and 0 < made < self.rule.planned_steps else self.rule

    @cached_property
    def origin(self) -> int:
        """The number of the first step, 0 or 1, as the runs count; where they differ, as the common steps do."""
        found = {origin(run.steps) for run in (*self.candidates, *self.baseline) if len(run.steps)}
        return found.pop() if len(found) == 1 else origin(self.common)

    def values(self, runs: Sequence[Run]) -> np.ndarray:
        """float64[runs, S] on the common steps."""
        return np.array([self.curve(run).at(self.common) for run in runs]).reshape(len(runs), len(self.common))

    @cached_property
    def candidate_values(self) -> np.ndarray:
        return self.values(self.candidates)

    @cached_property
    def baseline_values(self) -> np.ndarray:
        return self.values(self.baseline)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(candidate, baseline run) of one seed or one label `pair`, by index; each baseline run at most once."""
        theirs = {pair_key(run): index for index, run in reversed(list(enumerate(self.baseline))) if pair_key(run) is not None}
        return [(index, theirs.pop(key)) for index, run in enumerate(self.candidates) if (key := pair_key(run)) in theirs]


def pair_key(run: Run) -> object:
    return run.labels.get("pair", run.seed)


def origin(steps: np.ndarray) -> int:
    """0 for a run whose first step has number 0, 1 for one that counts from 1: also one that records every k-th step and first does at k."""
    if not len(steps) or steps[0] <= 1:
        return int(steps[0]) if len(steps) else 0
    return int(usual_stride(steps) == steps[0] and steps[0] > 1)


def usual_stride(steps: np.ndarray) -> int:
    """The most common distance of neighbouring steps: 1, or the interval of an evaluation or a log."""
    gaps = np.diff(steps)
    if not len(gaps) or bool((gaps == 1).all()):
        return 1
    strides, counts = np.unique(gaps, return_counts=True)
    return int(strides[np.argmax(counts)])


def common_steps(curves: Sequence[Curve]) -> np.ndarray:
    """int64[S]: the steps all curves have."""
    steps = curves[0].steps if curves else EMPTY.steps
    for curve in curves[1:]:
        if not np.array_equal(steps, curve.steps):
            steps = np.intersect1d(steps, curve.steps, assume_unique=True)
    return steps


EMPTY = Curve(np.empty(0, dtype=np.int64), np.empty(0))


def span(steps: Sequence[int], limit: int = 6) -> str:
    """Steps in words: `3, 7, 20–25 (8 in all)`."""
    parts: list[str] = []
    begin = previous = steps[0]
    for step in [*steps[1:], None]:
        if step is not None and step == previous + 1:
            previous = step
            continue
        parts.append(str(begin) if begin == previous else f"{begin}–{previous}")
        if step is not None:
            begin = previous = step
    shown = ", ".join(parts[:limit]) + (", …" if len(parts) > limit else "")
    return shown if len(steps) == 1 else f"{shown} ({len(steps)} in all)"
