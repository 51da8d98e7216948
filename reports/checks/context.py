"""What every check is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from matrix.rule import JudgeRule
from reports.model import Curve, Run
from reports.stats.summary import Grid, grid
from reports.verdict import Declared


@dataclass(frozen=True)
class Case:
    """Candidates, baseline, the rule and the claim; and what they come to on common steps."""

    candidates: Sequence[Run]
    baseline: Sequence[Run]
    rule: JudgeRule
    declared: Declared = field(default_factory=Declared)

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
        runs = [*self.candidates, *self.baseline]
        steps = self.curve(runs[0]).steps if runs else EMPTY.steps
        for run in runs[1:]:
            steps = np.intersect1d(steps, self.curve(run).steps, assume_unique=True)
        return steps

    @cached_property
    def grid(self) -> Grid:
        rule = self.rule
        start = int(self.common[0]) if len(self.common) else 0
        if rule.early_stop and len(self.common) and self.common[-1] - start + 1 < rule.planned_steps:
            rule = rule.model_copy(update={"planned_steps": int(self.common[-1]) - start + 1})
        return grid(self.common, rule, start if start <= 1 else 0)

    def values(self, runs: Sequence[Run]) -> np.ndarray:
        """float64[runs, S] on the common steps."""
        return np.array([self.curve(run).at(self.common) for run in runs]).reshape(len(runs), len(self.common))


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
