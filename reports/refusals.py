"""Why runs may not become a baseline, or not in this place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from matrix.outcome import Outcome
from matrix.rule import JudgeRule
from reports.baseline import FILE, read_folder, read_provenance
from reports.checks import convergence, copies, exactness, integrity, learning
from reports.checks.context import Case
from reports.checks.integrity import FIRST_CANDIDATE_SEED
from reports.claims import Claim, gaps
from reports.errors import ReportError
from reports.model import NoteKind, Run
from reports.verdict import Declared

FEW_RUNS = 3


def refusals(runs: Sequence[Run], rule: JudgeRule, declared: Declared, claim: Claim | None = None) -> list[str]:
    """Why these runs may not become a baseline, one line each; empty if they may."""
    seeds = [run.seed for run in runs]
    lines = [
        f"{run.name}: seed {run.seed}; baselines take seeds 0 to {FIRST_CANDIDATE_SEED - 1}"
        for run in runs
        if run.seed is None or not 0 <= run.seed < FIRST_CANDIDATE_SEED
    ]
    lines += [f"seed {seed} is there {seeds.count(seed)} times" for seed in sorted({s for s in seeds if s is not None and seeds.count(s) > 1})]
    lines += gaps(runs, claim)
    lines += [line for run in runs if (line := _judged_badly(run))]
    lines += [f"{run.name}: {note.text}" for run in runs for note in run.notes_of(NoteKind.VACUOUS, NoteKind.AGGREGATE) if note.metric in ("", rule.metric)]
    own = Case((), runs, rule, declared)
    broken = [check.text for check in integrity.check(own) if check.state != "good"]
    if broken:
        return list(dict.fromkeys(lines + broken))
    as_candidates = Case(runs, (), rule, declared)
    checks = exactness.check(as_candidates) + (learning.check(as_candidates) if rule.evidence == "convergence" else [])
    lines += [check.text for check in checks if check.state != "good"]
    return list(dict.fromkeys(lines + _outliers(runs, rule)))


def _outliers(runs: Sequence[Run], rule: JudgeRule) -> list[str]:
    """Runs that the others, as a baseline, would call FAIL."""
    if rule.evidence != "convergence" or len(runs) <= FEW_RUNS:
        return []
    lines = []
    for run in runs:
        comparisons, _ = convergence.compare(Case([run], [other for other in runs if other is not run], rule))
        lines += [f"{run.name} stands apart from the other {len(runs) - 1}: {comparison.text}" for comparison in comparisons if comparison.state == "outside"]
    return lines


def _judged_badly(run: Run) -> str:
    """The latest verdict beside the run (<root>/<cell>/verdicts/) that names it, if that verdict is one no baseline may have."""
    for file in sorted((run.path.parent / "verdicts").glob("*.json"), reverse=True):
        try:
            verdict = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if run.sha in (candidate.get("sha") for candidate in verdict.get("candidates", [])):
            bad = verdict.get("outcome") in (Outcome.FAIL, Outcome.INCOMPLETE, Outcome.INVALID)
            return f"{run.name}: judged {verdict['outcome']} in {file}" if bad else ""
    return ""


def copies_elsewhere(runs: Sequence[Run], rule: JudgeRule, into: Path, folder: Path) -> list[str]:
    """Runs whose curve another baseline under `into` holds already, under whatever name: one measurement is not two."""
    lines = []
    for other in sorted(into.glob(f"*/{FILE}")):
        if other.parent == folder or read_provenance(other.parent).metric != rule.metric:
            continue
        for known in read_folder(other.parent):
            for run in runs:
                curve, kept = run.curves.get(rule.metric), known.curves.get(rule.metric)
                if curve is not None and kept is not None and len(np.unique(curve.values)) >= copies.LEAST_DISTINCT_VALUES and copies.same(curve, kept):
                    lines.append(f"{run.name} is, value for value, {known.name} of the baseline {other.parent.name}: a copy is no second measurement")
    return lines


def drifted(folder: Path, previous: Sequence[Run], runs: Sequence[Run], rule: JudgeRule) -> list[str]:
    """The new runs against the frozen baseline, a line a statistic.

    Raises ReportError where they lie outside the margins around the baseline they replace, or around the frozen one: each of many small steps would pass.
    """
    if rule.evidence != "convergence":
        return []
    frozen = read_provenance(folder).frozen
    lines: list[str] = []
    for words, old in (("the baseline it would replace", previous), ("the frozen baseline", read_folder(folder / frozen) if frozen else previous)):
        comparisons, _ = convergence.compare(Case(runs, old, rule))
        outside = [comparison.text for comparison in comparisons if comparison.state == "outside"]
        if outside:
            raise ReportError(f"not recorded: FAIL against {words} ({folder.name}):\n  " + "\n  ".join(outside))
        lines = [comparison.text for comparison in comparisons]
    return lines
