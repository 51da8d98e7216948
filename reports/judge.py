"""Judge a set of candidate runs against a set of baseline runs by a recipe's rule. docs/verdict.md explains the rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from matrix.outcome import Outcome, most_severe
from matrix.rule import JudgeRule
from reports import night
from reports.baseline import load_baseline, read_provenance
from reports.checks import convergence, exactness, integrity, learning, resources, suspects
from reports.checks.context import Case
from reports.checks.copies import host_name
from reports.metrics import KEPT_IN_BASELINES, REWARD
from reports.model import Curve, Run, printable
from reports.readers import How, read_or_note
from reports.verdict import Check, Comparison, Declared, Ending, Found, Points, PoolGroup, RunRef, Suspect, Verdict

PROVENANCE = ("commit", "dirty", "host", "devices", "versions", "image", "config_hash", "command", "source")


def judge(
    candidates: Sequence[Path | Run],
    baseline: Sequence[Path | Run] | Path | None,
    rule: JudgeRule,
    declared: Declared | None = None,
    looks_done: int = 0,
    format: How = None,
    pool: Sequence[Path] = (),
    endings: Sequence[Ending] = (),
) -> Verdict:
    """The verdict. `baseline` is runs, a run's path, or a baseline folder; None or empty: there is none.

    `looks_done`: how often these candidates' cell was judged before with fewer runs in this build (0 the first time). `pool`: other baseline folders of the
    recipe's family, whose spread counts where the rule is `pooled`. `endings`: what the runner saw of runs that did not finish.
    Raises ReportError for a path that does not exist, ValueError for no candidate at all.
    """
    if not candidates:
        raise ValueError("no candidate runs: nothing to judge")
    runs = [item if isinstance(item, Run) else read_or_note(item, format) for item in candidates]
    base, base_path = load_baseline(baseline, format)
    case = Case(runs, base, rule, declared or Declared(), endings=endings)
    groups = [_group(folder, case, format) for folder in pool if not base_path or folder.resolve() != Path(base_path).resolve()] if rule.pooled else []
    stale = read_provenance(Path(base_path)).stale() if base_path else ""
    return judge_case(replace(case, pool=[group for group in groups if group.runs > 1]), looks_done, base_path, stale=stale)


def _group(folder: Path, case: Case, format: How) -> PoolGroup:
    from reports.checks.statistics import pool_group

    runs, _ = load_baseline(folder, format)
    return pool_group(folder.name, str(folder), runs, case)


@np.errstate(over="ignore", invalid="ignore")  # what overflows is undefined and decides nothing
def judge_case(case: Case, looks_done: int, base_path: str, created: str | None = None, stale: str = "") -> Verdict:
    """The verdict of runs that were read. `created`: its time, where it is judged again. `stale`: why the baseline is too old, then as now."""
    checks = integrity.check(case)
    comparisons: list[Comparison] = []
    level = None
    comparable = not [check for check in checks if check.state != "good" and check.outcome in (Outcome.INVALID, Outcome.FAIL)]
    checks += exactness.check(case, comparable)
    if case.rule.evidence == "convergence" and comparable:
        whole = not [check for check in checks if check.state != "good" and check.outcome in (Outcome.INCOMPLETE, Outcome.INFRA)]
        checks += learning.check(case) if whole else []
        comparisons, level = convergence.compare(case) if whole else ([], None)
        checks += _gating_metrics(comparisons)
    costs = resources.compare(case)
    outcome = _outcome(case, checks, comparisons)
    look = looks_done + 1
    last = look >= case.rule.max_seeds or len(case.candidates) >= case.rule.max_seeds
    reasons = _reasons(case, outcome, checks, comparisons, last) + ([stale] if stale else [])
    unhealthy = outcome not in (Outcome.PASS, Outcome.NO_BASELINE)
    ranked = suspects.rank(case, checks, comparisons, costs)
    return Verdict(
        **({"created": created} if created else {}),
        outcome=outcome,
        evidence=case.rule.evidence,
        descriptive=len(case.baseline) == 1 and case.rule.evidence == "convergence",
        stale=any(check.name == "science hash" and check.outcome is Outcome.NO_BASELINE and check.state != "good" for check in checks),
        headline=reasons[0],
        reasons=reasons,
        suspects=[s for s in ranked if unhealthy or s.name == "performance"],
        declared=case.declared,
        rule=case.rule,
        look=look,
        looks=case.rule.max_seeds,
        last_look=last,
        level=level,
        alarm_p=night.alarm_p(checks, comparisons, case.rule.max_seeds),
        common_steps=len(case.common),
        candidates=[run_ref(run, case, whole=True) for run in case.candidates],
        baseline=[run_ref(run, case) for run in case.baseline],
        baseline_path=printable(base_path),
        baseline_stale=stale,
        pool=list(case.pool),
        endings=list(case.endings),
        checks=checks,
        comparisons=comparisons,
        resources=costs,
    )


def _gating_metrics(comparisons: list[Comparison]) -> list[Check]:
    """A secondary statistic that gates and cannot be computed is missing, which is never a pass."""
    lost = [c for c in comparisons if c.gates and c.metric and c.state in ("undefined", "descriptive") and not np.isfinite([*c.candidate, *c.baseline]).all()]
    return [Check(stage="integrity", name="metric", state="missing", outcome=Outcome.INVALID, text=f"{c.text}; a missing metric is never a pass") for c in lost]


def _outcome(case: Case, checks: list[Check], comparisons: list[Comparison]) -> Outcome:
    """Integrity, exactness and learning first; then every interval inside for PASS, any wholly outside for FAIL, else undecided."""
    bad = [check.outcome for check in checks if check.state != "good"]
    own = most_severe(bad) if bad else _of_evidence(case, checks, comparisons)
    return most_severe([own, *(ending.outcome for ending in case.endings)])


def _of_evidence(case: Case, checks: list[Check], comparisons: list[Comparison]) -> Outcome:
    if case.rule.evidence == "exactness":
        return Outcome.PASS if any(check.stage == "exactness" for check in checks) else Outcome.INVALID
    if len(case.baseline) < convergence.LEAST_BASELINE_RUNS:
        return Outcome.NO_BASELINE
    deciding = [comparison.state for comparison in comparisons if comparison.gates]
    if "outside" in deciding:
        return Outcome.FAIL
    if deciding and all(state == "inside" for state in deciding):
        return Outcome.PASS
    return Outcome.INCONCLUSIVE


def _reasons(case: Case, outcome: Outcome, checks: list[Check], comparisons: list[Comparison], last: bool) -> list[str]:
    """Plain words, the deciding ones first."""
    bad = sorted((check for check in checks if check.state != "good"), key=lambda check: check.outcome is not outcome)
    decisive = [c.text for c in comparisons if c.gates and c.state == ("outside" if outcome is Outcome.FAIL else "between")]
    undefined = [c.text for c in comparisons if c.gates and c.state == "undefined"]
    endings = [ending.reason for ending in sorted(case.endings, key=lambda ending: ending.outcome is not outcome)]
    reasons = (
        (endings if outcome in [ending.outcome for ending in case.endings] else [])
        + [check.text for check in bad]
        + (decisive + undefined if outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE) else [])
    )
    if outcome is Outcome.PASS:
        reasons.append(_pass_words(case, checks, comparisons))
    if outcome is Outcome.INCONCLUSIVE:
        reasons.append("no look is left: the difference stays undecided" if last else f"undecided with {len(case.candidates)} candidate run(s): add a seed")
    if outcome is Outcome.INVALID and not bad:
        reasons.append("the recipe declares exactness and no band that could show it: nothing was proven")
    if outcome is Outcome.NO_BASELINE and not bad:
        reasons.append(_no_baseline_words(case))
    reasons += [f"{c.title}: far better than the baseline: check reward and data" for c in comparisons if c.far_better]
    if comparisons and any(len(case.curve(run).steps) != len(case.common) for run in (*case.candidates, *case.baseline)):
        reasons.append(f"step grids differ: compared on the {len(case.common)} steps that all runs share, nothing interpolated")
    reasons += [f"not deciding: {c.text}" for c in comparisons if not c.gates and c.state == "outside"]
    return list(dict.fromkeys(reasons + endings))


def _pass_words(case: Case, checks: list[Check], comparisons: list[Comparison]) -> str:
    if case.rule.evidence == "exactness":
        told = "".join(f"; {check.text}" for check in checks if check.name.startswith("trajectory"))
        return f"{sum(check.stage == 'exactness' for check in checks)} exactness checks hold; no statement about convergence{told}"
    deciding = [comparison for comparison in comparisons if comparison.gates]
    tightest = max(deciding, key=share_of_margin)
    return f"all {len(deciding)} statistics lie inside their margins; the closest, {tightest.title}, uses {share_of_margin(tightest):.0%} of it"


def share_of_margin(comparison: Comparison) -> float:
    """How much of the margin the far end of the interval uses: below 1 is inside."""
    from math import log

    scale = log if comparison.scale == "ratio" else float
    ends = [(comparison.low, comparison.margin_low), (comparison.high, comparison.margin_high)]
    return max((scale(end) / scale(margin) for end, margin in ends if end is not None and margin is not None), default=0.0)


def _no_baseline_words(case: Case) -> str:
    if not case.baseline:
        return "there is no baseline for this recipe: record one with `python -m reports baseline record`"
    return "one baseline run is one draw, not a distribution: the comparison is descriptive, no judgement"


def run_ref(run: Run, case: Case, whole: bool = False) -> RunRef:
    """What a verdict keeps of a run: with `whole` the curve of every metric a check knows, else the judged ones and a few numbers of the others."""
    curve = case.curve(run)
    manifest = {key: run.manifest[key] for key in PROVENANCE if run.manifest.get(key) is not None}
    further = [item.metric for item in case.rule.secondary if item.metric] + ([*KEPT_IN_BASELINES] if whole else []) + ([REWARD] if whole else [])
    return RunRef(
        name=run.name,
        path=printable(str(run.path)),
        format=run.format,
        sha=run.sha,
        seed=run.seed,
        science_hash=run.science_hash,
        steps_done=len(run.steps),
        first_step=int(run.steps[0]) if len(run.steps) else None,
        last_step=int(run.steps[-1]) if len(run.steps) else None,
        planned_steps=run.planned_steps,
        curve=_points(curve),
        notes=[Found(kind=note.kind, text=note.text, where=note.where, metric=note.metric) for note in run.notes],
        provenance=manifest,
        labels=run.labels,
        grid=ranges(run.steps),
        recorded=run.recorded,
        curves={name: _points(run.curves[name], run.steps) for name in dict.fromkeys(further) if name in run.curves and name != case.rule.metric},
        facts=run.facts,
        syncs=run.syncs,
        events=run.events_of("error", "early_stop"),
        infra_class=run.runner.get("infra_class"),
    )


def _points(curve: Curve, all_steps: np.ndarray | None = None) -> Points:
    steps = [] if all_steps is not None and np.array_equal(curve.steps, all_steps) else curve.steps.tolist()
    return Points.model_construct(steps=steps, values=curve.values.tolist())


def ranges(steps: np.ndarray) -> list[tuple[int, int, int]]:
    """Steps as (first, last, stride); `numpy.arange(first, last + 1, stride)` of each gives them back."""
    found: list[tuple[int, int, int]] = []
    begin = 0
    while begin < len(steps):
        if begin + 1 == len(steps):
            found.append((int(steps[begin]), int(steps[begin]), 1))
            break
        gaps = np.diff(steps[begin:])
        other = np.flatnonzero(gaps != gaps[0])
        end = begin + (int(other[0]) if len(other) else len(gaps))
        found.append((int(steps[begin]), int(steps[end]), int(gaps[0])))
        begin = end + 1
    return found


__all__ = ["Declared", "Suspect", "Verdict", "host_name", "judge", "judge_case", "run_ref", "share_of_margin"]
