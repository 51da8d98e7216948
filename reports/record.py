"""Recording a baseline: what is refused, what is kept of each run, and what replacing one leaves for review."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matrix.canonical import SHORT
from matrix.outcome import Outcome
from matrix.rule import JudgeRule
from reports.baseline import FILE, Entry, Provenance, Replaced, read_folder, read_machine, slim_sha, write_json
from reports.checks import convergence, exactness, integrity, learning
from reports.checks.context import Case
from reports.checks.integrity import FIRST_CANDIDATE_SEED
from reports.errors import ReportError
from reports.metrics import KEPT_IN_BASELINES
from reports.model import Run
from reports.readers import read_run
from reports.verdict import Declared

FEW_RUNS = 3
KEPT_IN_MANIFEST = ("schema_version", "seed", "labels", "planned_steps", "commit", "dirty", "versions", "host", "devices", "image", "config_hash", "attempts")


def record(
    runs: Sequence[Run],
    rule: JudgeRule,
    declared: Declared,
    into: Path,
    command: str,
    *,
    name: str | None = None,
    reason: str | None = None,
    approver: str | None = None,
) -> Path:
    """Write the baseline of `runs` under `into` and return its folder, named after the science hash (or `name`, for runs without one).

    Raises ReportError, naming every run and why, for runs that are broken, unfinished, out of their bands, that did not learn, that stand apart from the
    others, that are copies, that a verdict next to them calls FAIL, INCOMPLETE or INVALID, or whose seed is not 0 to 99; and for a folder that has a baseline
    already, without reason and approver.
    """
    refused = refusals(runs, rule, declared)
    if refused:
        raise ReportError("not recorded:\n  " + "\n  ".join(refused))
    folder = into / _folder_name(runs, name)
    previous = read_folder(folder) if (folder / FILE).is_file() else []
    if previous and not (reason and approver):
        raise ReportError(f"{folder} holds a baseline of {len(previous)} runs: replacing it needs --reason and --approver, and a review of old and new curves")
    now = datetime.now(UTC)
    if previous:
        _keep_for_review(folder, previous, runs, rule, now)
    entries = [_write_run(folder, run, rule) for run in sorted(runs, key=lambda run: int(run.seed or 0))]
    replaced = (
        Replaced(reason=reason, approver=approver, date=now.isoformat(timespec="seconds"), previous=[run.sha for run in previous])
        if previous and reason and approver
        else None
    )
    write_json(folder / FILE, _provenance(runs, entries, rule, declared, command, now, replaced).model_dump())
    return folder


def refusals(runs: Sequence[Run], rule: JudgeRule, declared: Declared) -> list[str]:
    """Why these runs may not become a baseline, one line each; empty if they may."""
    seeds = [run.seed for run in runs]
    lines = [
        f"{run.name}: seed {run.seed}; baselines take seeds 0 to {FIRST_CANDIDATE_SEED - 1}"
        for run in runs
        if run.seed is None or not 0 <= run.seed < FIRST_CANDIDATE_SEED
    ]
    lines += [f"seed {seed} is there {seeds.count(seed)} times" for seed in sorted({s for s in seeds if s is not None and seeds.count(s) > 1})]
    lines += [line for run in runs if (line := _judged_badly(run))]
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


def _folder_name(runs: Sequence[Run], name: str | None) -> str:
    science = runs[0].science_hash
    if science is None and name is None:
        raise ReportError("the runs carry no science hash: name the baseline with --name")
    return name or str(science)[:SHORT]


def _write_run(folder: Path, run: Run, rule: JudgeRule) -> Entry:
    path = folder / f"seed-{run.seed}"
    path.mkdir(parents=True, exist_ok=True)
    manifest = {key: run.manifest[key] for key in KEPT_IN_MANIFEST if key in run.manifest}
    write_json(path / "manifest.json", manifest | {"content_hash": run.sha})
    (path / "metrics.jsonl").write_text("".join(_slim_lines(run, rule)), encoding="utf-8")
    return Entry(
        seed=int(run.seed or 0),
        path=path.name,
        sha=run.sha,
        slim_sha=slim_sha(read_run(path)),
        source="/".join(run.path.absolute().parts[-2:]),  # <cell key>/<run>: where it lay on one machine tells nobody anything
        commit=run.manifest.get("commit"),
        dirty=run.manifest.get("dirty"),
    )


def _slim_lines(run: Run, rule: JudgeRule) -> list[str]:
    """metrics.jsonl with the judged metric exact and the others to six significant digits."""
    rows: dict[int, dict[str, float]] = {step: {} for step in run.steps.tolist()}
    for name in dict.fromkeys((rule.metric, *KEPT_IN_BASELINES)):
        if name in run.curves:
            for step, value in zip(run.curves[name].steps.tolist(), run.curves[name].values.tolist()):
                rows[step][name] = value if name == rule.metric else float(f"{value:.6g}")
    return [json.dumps({"step": step, "metrics": metrics}) + "\n" for step, metrics in rows.items()]


def _keep_for_review(folder: Path, previous: list[Run], runs: Sequence[Run], rule: JudgeRule, now: datetime) -> None:
    """Move the old runs aside and write a page with old and new curves."""
    from reports.compare import write_comparison

    aside = folder / "replaced" / now.strftime("%Y%m%dT%H%M%SZ")
    aside.mkdir(parents=True)
    write_comparison({"old baseline": previous, "new baseline": list(runs)}, aside, metric=rule.metric, title=f"Baseline {folder.name}: old and new", rule=rule)
    shutil.move(folder / FILE, aside / FILE)
    for run in previous:
        shutil.move(folder / run.path.name, aside / run.path.name)


def _provenance(
    runs: Sequence[Run], entries: list[Entry], rule: JudgeRule, declared: Declared, command: str, now: datetime, replaced: Replaced | None
) -> Provenance:
    first = runs[0]
    labels: dict[str, Any] = first.labels
    return Provenance(
        science_hash=first.science_hash,
        recipe=declared.recipe or labels.get("recipe"),
        cell=labels.get("cell"),
        reward=labels.get("reward"),
        metric=rule.metric,
        planned_steps=rule.planned_steps,
        command=command,
        date=now.isoformat(timespec="seconds"),
        commits=sorted({str(run.manifest["commit"]) for run in runs if run.manifest.get("commit")}),
        dirty=any(run.manifest.get("dirty") is not False for run in runs),
        machine=read_machine(first),
        devices=first.manifest.get("devices"),
        versions=dict(first.manifest.get("versions") or {}),
        notes=_notes(runs),
        runs=entries,
        replaced=replaced,
    )


def _notes(runs: Sequence[Run]) -> list[str]:
    notes = [f"{run.name}: {note.kind}: {note.text}" for run in runs for note in run.notes]
    if len(runs) < FEW_RUNS:
        notes.append(f"{len(runs)} run(s): below {FEW_RUNS} a baseline is descriptive or nearly so")
    return notes
