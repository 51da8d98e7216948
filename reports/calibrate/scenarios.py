"""What may be wrong with a candidate, as a change of its curve. δ is the margin of the last window; worse is lower unless the recipe says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from matrix.rule import JudgeRule
from reports.calibrate.resample import CurveModel
from reports.stats.summary import Grid

NOISIER = "step noise × 2"

Change = Callable[[CurveModel, np.ndarray, JudgeRule, Grid], np.ndarray]


@dataclass(frozen=True)
class Scenario:
    """`wanted` is what the rule should say. `change` maps curves float64[..., S] to changed ones; `draw` gives arguments for `CurveModel.draw`."""

    name: str
    wanted: str
    change: Change
    arguments: tuple[tuple[str, float], ...] = ()

    def draw(self, model: CurveModel) -> dict[str, Any]:
        return dict(self.arguments)


def unchanged(model: CurveModel, curves: np.ndarray, rule: JudgeRule, at: Grid) -> np.ndarray:
    return curves


def _plateau(share: float) -> Change:
    """The last window is worse by `share`·δ, growing with what is learned: nothing at the start, all of it where the mean curve ends."""

    def change(model: CurveModel, curves: np.ndarray, rule: JudgeRule, at: Grid) -> np.ndarray:
        assert rule.delta is not None
        progress = (model.mean - model.mean[0]) / ((model.mean[at.last].mean() - model.mean[0]) or 1.0)
        return curves - _sign(rule) * share * rule.delta.last * np.clip(progress, 0, 1)

    return change


def _late_collapse(model: CurveModel, curves: np.ndarray, rule: JudgeRule, at: Grid) -> np.ndarray:
    """Over the last tenth of the steps half of what was learned is lost."""
    steps = curves.shape[-1]
    begin = steps - max(steps // 10, 2)
    learned = model.mean[at.last].mean() - model.mean[0]
    fall = np.clip((np.arange(1, steps + 1) - begin) / (steps - begin), 0, 1)
    return curves - 0.5 * learned * fall


def _no_learning(model: CurveModel, curves: np.ndarray, rule: JudgeRule, at: Grid) -> np.ndarray:
    """The mean curve stays where it starts."""
    return curves - (model.mean - model.mean[at.first].mean())


def _sign(rule: JudgeRule) -> float:
    return 1.0 if rule.better == "higher" else -1.0


SCENARIOS = (
    Scenario("healthy", "PASS", unchanged),
    Scenario("plateau worse by δ/2", "PASS or undecided", _plateau(0.5)),
    Scenario("plateau worse by δ", "not PASS", _plateau(1.0)),
    Scenario("plateau worse by 2 δ", "FAIL", _plateau(2.0)),
    Scenario("plateau better by 2 δ", "FAIL if two-sided", _plateau(-2.0)),
    Scenario("learning 1.5 × slower", "FAIL", unchanged, (("stretch", 1.5),)),
    Scenario("learning 2 × slower", "FAIL", unchanged, (("stretch", 2.0),)),
    Scenario("late collapse by half", "FAIL", _late_collapse),
    Scenario("no learning", "FAIL", _no_learning),
    Scenario(NOISIER, "FAIL or undecided", unchanged, (("noise_factor", 2.0),)),
)
