"""Did each candidate learn at all, and did it keep what it learned?"""

from __future__ import annotations

import numpy as np

from matrix.outcome import Outcome
from matrix.rule import JudgeRule
from reports.checks.context import Case
from reports.stats.intervals import run_sd, t_quantile, t_tail
from reports.stats.summary import Grid, best_window_end, drop_from_best, gain, residual_sd
from reports.verdict import Check

DROP_LEVEL = 0.005  # one-sided chance that a healthy run's own drop from its best window is called a collapse
DROP_SE = 4.0  # within-run standard errors of a difference of two windows that a drop must exceed in any case
LEAST_RUNS_FOR_GAIN = 2
LEAST_STEPS = 6  # of which `residual_sd` gives a noise
LEAST_RUNS_FOR_DROP = 3


def check(case: Case) -> list[Check]:
    """Two checks a candidate: gain (last window over first; not where the rule has `learning: false`) and collapse (last values against its best window)."""
    candidates, baseline = case.candidate_values * case.sign, case.baseline_values * case.sign
    width = int(case.grid.first.sum())  # values, not steps: an evaluation is recorded sparsely
    if not width:
        return []
    noise, usual_gains, usual_drops = residual_sd(candidates), gain(baseline, case.grid), drop_from_best(baseline, width)
    gains, gain_limit = gain(candidates, case.grid), least_gain(noise, usual_gains, case.rule, case.grid)
    drops, drop_limit = drop_from_best(candidates, width), largest_drop(noise, usual_drops, case.rule, width)
    chance_gain, chance_drop = chance(-gains, -usual_gains), chance(drops, usual_drops)
    found: list[Check] = []
    for index, run in enumerate(case.candidates):
        if np.isfinite(candidates[index]).all() and not np.isfinite(noise[index]):  # a handful of values has no noise to speak of: nothing was shown either way
            few = f"{len(case.common)} common steps are too few to tell learning from noise"
            text = f"{run.name}: {few if len(case.common) < LEAST_STEPS else 'values so large that their noise cannot be computed'}"
            found.append(Check(stage="learning", name="learning", run=run.name, state="missing", outcome=Outcome.INCONCLUSIVE, text=text))
            continue
        grown, limit = float(gains[index]), float(gain_limit[index])
        text = f"{run.name}: the last window lies {grown:+.4g} from the first; learning is more than {limit:.4g}"
        if case.rule.learning:
            found.append(_check("learning", run.name, grown > limit, text, grown, limit, chance_gain[index]))
        fallen, allowed = float(drops[index]), float(drop_limit[index])
        best = int(case.common[best_window_end(candidates[index], width)])
        text = f"{run.name}: ends {fallen:.4g} below its own best window (ending at step {best}); up to {allowed:.4g} is usual"
        found.append(_check("collapse", run.name, fallen <= allowed, text, fallen, allowed, chance_drop[index]))
    return found


def least_gain(noise: np.ndarray, usual: np.ndarray, rule: JudgeRule, at: Grid) -> np.ndarray:
    """float64[..., n]: the gain that noise alone reaches with probability alpha. noise: float64[..., n], of the candidates; usual: float64[..., B] gains.

    Noise is the baseline's between-run spread of the gain, and at least what the candidate's own step noise makes of two window means.
    """
    within = noise * np.sqrt(1 / max(at.first.sum(), 1) + 1 / max(at.last.sum(), 1))
    limit = t_quantile(1 - rule.alpha, 1e6) * within
    runs = usual.shape[-1]
    if runs >= LEAST_RUNS_FOR_GAIN:
        limit = np.maximum(limit, (t_quantile(1 - rule.alpha, runs - 1) * run_sd(usual))[..., None])
    return limit


def largest_drop(noise: np.ndarray, usual: np.ndarray, rule: JudgeRule, width: int) -> np.ndarray:
    """float64[..., n]: the drop from the best window of `width` values that is usual. noise: float64[..., n]; usual: float64[..., B] drops.

    Usual is what the baseline's runs show, and at least what the candidate's own step noise makes of the best of many windows;
    δ of the last window is always allowed.
    """
    runs = usual.shape[-1]
    limit = DROP_SE * noise * np.sqrt(2 / width)
    if runs >= LEAST_RUNS_FOR_DROP:
        most = usual.mean(axis=-1) + t_quantile(1 - DROP_LEVEL, runs - 1) * run_sd(usual) * np.sqrt(1 + 1 / runs)
        limit = np.maximum(limit, most[..., None])
    return np.maximum(limit, rule.delta.last if rule.delta else 0.0)


def chance(candidates: np.ndarray, baseline: np.ndarray) -> list[float | None]:
    """How often one more run of the baseline's kind lies this high or higher. candidates: float64[n], baseline: float64[B]; None below three runs."""
    runs = len(baseline)
    spread = float(run_sd(baseline)) if runs >= LEAST_RUNS_FOR_DROP else 0.0
    if not spread > 0:
        return [None] * len(candidates)
    return [float(p) for p in t_tail((candidates - baseline.mean()) / (spread * np.sqrt(1 + 1 / runs)), np.full(len(candidates), runs - 1.0))]


def _check(name: str, run: str, good: bool, text: str, value: float, limit: float, p: float | None) -> Check:
    """A limit that the baseline does not define says nothing of the candidate."""
    outcome, state = (Outcome.FAIL, "bad") if np.isfinite(limit) else (Outcome.INVALID, "missing")
    return Check(stage="learning", name=name, run=run, state="good" if good else state, outcome=outcome, text=text, value=value, limit=limit, p=p)
