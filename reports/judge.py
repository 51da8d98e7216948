"""Judge a set of candidate runs against a set of baseline runs by a recipe's rule. docs/verdict.md explains the rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matrix.outcome import Outcome, most_severe
from matrix.rule import JudgeRule
from reports.baseline import load_baseline
from reports.checks import convergence, exactness, integrity, learning, resources, suspects
from reports.checks.context import Case
from reports.checks.copies import host_name
from reports.model import Run
from reports.readers import read_or_note
from reports.verdict import Check, Comparison, Declared, Found, Points, RunRef, Suspect, Verdict

PROVENANCE = ("commit", "dirty", "host", "devices", "versions", "image", "config_hash", "command", "source")


def judge(
    candidates: Sequence[Path | Run],
    baseline: Sequence[Path | Run] | Path | None,
    rule: JudgeRule,
    declared: Declared | None = None,
    looks_done: int = 0,
    format: str | None = None,
) -> Verdict:
    """The verdict. `baseline` is runs, a run's path, or a baseline folder; None or empty: there is none.

    `looks_done`: how often these candidates' cell was judged before with fewer runs in this build (0 the first time).
    Raises ReportError for a path that does not exist, ValueError for no candidate at all.
    """
    if not candidates:
        raise ValueError("no candidate runs: nothing to judge")
    runs = [item if isinstance(item, Run) else read_or_note(item, format) for item in candidates]
    base, base_path = load_baseline(baseline, format)
    return _judge(Case(runs, base, rule, declared or Declared()), looks_done, base_path)


def _judge(case: Case, looks_done: int, base_path: str) -> Verdict:
    checks = integrity.check(case)
    comparisons: list[Comparison] = []
    level = None
    comparable = not [check for check in checks if check.state != "good" and check.outcome in (Outcome.INVALID, Outcome.FAIL)]
    checks += exactness.check(case)
    if case.rule.evidence == "convergence" and comparable:
        whole = not [check for check in checks if check.state != "good" and check.outcome in (Outcome.INCOMPLETE, Outcome.INFRA)]
        checks += learning.check(case) if whole else []
        comparisons, level = convergence.compare(case) if whole else ([], None)
    costs = resources.compare(case)
    outcome = _outcome(case, checks, comparisons)
    look = looks_done + 1
    last = look >= case.rule.max_seeds or len(case.candidates) >= case.rule.max_seeds
    reasons = _reasons(case, outcome, checks, comparisons, last)
    unhealthy = outcome not in (Outcome.PASS, Outcome.NO_BASELINE)
    ranked = suspects.rank(case, checks, comparisons, costs)
    return Verdict(
        outcome=outcome,
        evidence=case.rule.evidence,
        descriptive=len(case.baseline) == 1,
        stale=any(check.outcome is Outcome.NO_BASELINE and check.state != "good" for check in checks),
        headline=reasons[0],
        reasons=reasons,
        suspects=[s for s in ranked if unhealthy or s.name == "performance"],
        declared=case.declared,
        rule=case.rule,
        look=look,
        looks=case.rule.max_seeds,
        last_look=last,
        level=level,
        common_steps=len(case.common),
        candidates=[run_ref(run, case) for run in case.candidates],
        baseline=[run_ref(run, case) for run in case.baseline],
        baseline_path=base_path,
        checks=checks,
        comparisons=comparisons,
        resources=costs,
    )


def _outcome(case: Case, checks: list[Check], comparisons: list[Comparison]) -> Outcome:
    """Integrity, exactness and learning first; then every interval inside for PASS, any wholly outside for FAIL, else undecided."""
    bad = [check.outcome for check in checks if check.state != "good"]
    if bad:
        return most_severe(bad)
    if case.rule.evidence == "exactness":
        return Outcome.PASS if any(check.stage == "exactness" for check in checks) else Outcome.INVALID
    if len(case.baseline) < convergence.LEAST_BASELINE_RUNS:
        return Outcome.NO_BASELINE
    if any(comparison.state == "outside" for comparison in comparisons):
        return Outcome.FAIL
    if comparisons and all(comparison.state == "inside" for comparison in comparisons):
        return Outcome.PASS
    return Outcome.INCONCLUSIVE


def _reasons(case: Case, outcome: Outcome, checks: list[Check], comparisons: list[Comparison], last: bool) -> list[str]:
    """Plain words, the deciding ones first."""
    bad = sorted((check for check in checks if check.state != "good"), key=lambda check: check.outcome is not outcome)
    decisive = [c.text for c in comparisons if c.state == ("outside" if outcome is Outcome.FAIL else "between")]
    undefined = [c.text for c in comparisons if c.state == "undefined"]
    reasons = [check.text for check in bad] + (decisive + undefined if outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE) else [])
    if outcome is Outcome.PASS:
        reasons.append(_pass_words(case, checks, comparisons))
    if outcome is Outcome.INCONCLUSIVE:
        reasons.append("no look is left: the difference stays undecided" if last else f"undecided with {len(case.candidates)} candidate run(s): add a seed")
    if outcome is Outcome.INVALID and not bad:
        reasons.append("the recipe declares exactness and no band that could show it: nothing was proven")
    if outcome is Outcome.NO_BASELINE and not bad:
        reasons.append(_no_baseline_words(case))
    reasons += [f"{c.title}: far better than the baseline: check reward and data" for c in comparisons if c.far_better]
    grids = {tuple(case.curve(run).steps.tolist()) for run in (*case.candidates, *case.baseline)}
    if len(grids) > 1 and comparisons:
        reasons.append(f"step grids differ: compared on the {len(case.common)} steps that all runs share, nothing interpolated")
    return list(dict.fromkeys(reasons))


def _pass_words(case: Case, checks: list[Check], comparisons: list[Comparison]) -> str:
    if case.rule.evidence == "exactness":
        return f"{sum(check.stage == 'exactness' for check in checks)} exactness checks hold; no statement about convergence"
    tightest = max(comparisons, key=share_of_margin)
    return f"all {len(comparisons)} statistics lie inside their margins; the closest, {tightest.title}, uses {share_of_margin(tightest):.0%} of it"


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


def run_ref(run: Run, case: Case) -> RunRef:
    curve = case.curve(run)
    provenance = {key: run.manifest[key] for key in PROVENANCE if run.manifest.get(key) is not None}
    return RunRef(
        name=run.name,
        path=str(run.path),
        format=run.format,
        sha=run.sha,
        seed=run.seed,
        science_hash=run.science_hash,
        steps_done=len(run.steps),
        first_step=int(run.steps[0]) if len(run.steps) else None,
        last_step=int(run.steps[-1]) if len(run.steps) else None,
        planned_steps=run.planned_steps,
        curve=Points(steps=curve.steps.tolist(), values=curve.values.tolist()),
        notes=[Found(kind=note.kind, text=note.text, where=note.where, metric=note.metric) for note in run.notes],
        provenance=provenance,
    )


__all__ = ["Declared", "Suspect", "Verdict", "host_name", "judge", "run_ref", "share_of_margin"]
