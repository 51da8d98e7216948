"""Recording a baseline: what is refused, what is kept of each run, and what replacing one leaves for review."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from matrix.canonical import SHORT
from matrix.rule import JudgeRule
from reports import store
from reports.baseline import FILE, Entry, Provenance, Replaced, read_folder, read_machine, read_provenance, slim_sha, write_json
from reports.claims import Claim
from reports.errors import ReportError
from reports.metrics import KEPT_IN_BASELINES
from reports.model import Run
from reports.readers import read_run
from reports.refusals import FIRST_CANDIDATE_SEED, copies_elsewhere, drifted, refusals
from reports.verdict import Declared

FEW_RUNS = 3
KEPT_IN_MANIFEST = (
    "schema_version", "seed", "source_seed", "labels", "planned_steps", "commit", "dirty", "versions", "host", "devices", "image", "config_hash", "attempts",
)  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """What is said about the runs beside what they say themselves. expires: a date; store: an fsspec root for the whole files."""

    claim: Claim | None = None
    expires: date | None = None
    store: str | None = None
    science_hash: str | None = None  # claimed for runs that carry none


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
    origin: Origin | None = None,
) -> Path:
    """Write the baseline of `runs` under `into` and return its folder, named after the science hash (or `name`, for runs without one).

    Raises ReportError, naming every run and why, for runs that are broken, unfinished, out of their bands, that did not learn, that stand apart from the
    others, that are copies (of each other, or of a run in another baseline), that a verdict next to them calls FAIL, INCOMPLETE or INVALID, whose seed is
    not 0 to 99, or whose provenance is not complete; and for a folder that has a baseline already, without reason and approver, or where the new runs lie
    outside the margins around the old or the frozen ones.
    """
    origin = origin or Origin()
    runs = numbered([_claimed(run, origin) for run in runs])
    refused = refusals(runs, rule, declared, origin.claim)
    folder = into / _folder_name(runs, name) if not refused else into
    refused = refused or copies_elsewhere(runs, rule, into, folder)
    if refused:
        raise ReportError("not recorded:\n  " + "\n  ".join(refused))
    previous = read_folder(folder) if (folder / FILE).is_file() else []
    if previous and not (reason and approver):
        raise ReportError(
            f"{folder} holds a baseline of {len(previous)} runs: replacing it (`baseline replace`) needs --reason and --approver, and a review of its page"
        )
    drift = drifted(folder, previous, runs, rule) if previous else []
    now = datetime.now(UTC)
    frozen = _keep_for_review(folder, previous, runs, rule, now) if previous else None
    entries = [_write_run(folder, run, rule) for run in sorted(runs, key=lambda run: int(run.seed or 0))]
    replaced = (
        Replaced(reason=reason, approver=approver, date=now.isoformat(timespec="seconds"), previous=[run.sha for run in previous])
        if previous and reason and approver
        else None
    )
    blobs = store.put(origin.store, [(f"seed-{run.seed}", run) for run in runs]) if origin.store else []
    told = _provenance(runs, entries, rule, declared, command, now, origin.claim).model_copy(
        update={"replaced": replaced, "frozen": frozen, "drift": drift, "claim": origin.claim, "store": origin.store, "files": blobs}
        | {"expires": origin.expires.isoformat() if origin.expires else None}
    )
    write_json(folder / FILE, told.model_dump(exclude_none=True))
    return folder


def numbered(runs: Sequence[Run]) -> list[Run]:
    """Runs of other programs have seeds of their own, or none: they get the free numbers from 0 on, in their order; their own seed is kept beside it.

    Runs of a declared cell keep theirs: there, a seed outside 0 to 99 is a mistake.
    """
    taken = {run.seed for run in runs if _is_baseline_seed(run.seed)}
    free = (number for number in range(FIRST_CANDIDATE_SEED) if number not in taken)
    result = []
    for run in runs:
        if _is_baseline_seed(run.seed) or run.labels.get("cell"):
            result.append(run)
            continue
        own = {"source_seed": run.seed} if run.seed is not None else {}
        result.append(replace(run, manifest=run.manifest | own | {"seed": next(free, None)}))
    return result


def _is_baseline_seed(seed: int | None) -> bool:
    return seed is not None and 0 <= seed < FIRST_CANDIDATE_SEED


def _claimed(run: Run, origin: Origin) -> Run:
    """The run with the science hash that is claimed for it. One that it carries itself and that differs is left for the checks to refuse."""
    if origin.science_hash is None or run.science_hash is not None:
        return run
    return replace(run, manifest=run.manifest | {"labels": run.labels | {"science_hash": origin.science_hash}})


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
    stops = [json.dumps(event) + "\n" for event in run.events_of("early_stop")]
    if stops:
        (path / "events.jsonl").write_text("".join(stops), encoding="utf-8")
    return Entry(
        seed=int(run.seed or 0),
        path=path.name,
        sha=run.sha,
        slim_sha=slim_sha(read_run(path)),
        source=_source(run),
        source_seed=run.manifest.get("source_seed"),
        commit=run.manifest.get("commit"),
        dirty=run.manifest.get("dirty"),
    )


def _source(run: Run) -> str:
    """<cell key>/<run>: where it lay on one machine tells nobody anything."""
    return "/".join(run.path.absolute().parts[-2:]) + (f"#{run.part}" if run.part else "")


def _slim_lines(run: Run, rule: JudgeRule) -> list[str]:
    """metrics.jsonl with the judged metric exact and the others to six significant digits."""
    rows: dict[int, dict[str, float]] = {step: {} for step in run.steps.tolist()}
    for name in dict.fromkeys((rule.metric, *KEPT_IN_BASELINES)):
        if name in run.curves:
            for step, value in zip(run.curves[name].steps.tolist(), run.curves[name].values.tolist()):
                rows[step][name] = value if name == rule.metric else float(f"{value:.6g}")
    return [json.dumps({"step": step, "metrics": metrics}) + "\n" for step, metrics in rows.items()]


def _keep_for_review(folder: Path, previous: list[Run], runs: Sequence[Run], rule: JudgeRule, now: datetime) -> str:
    """Move the old runs aside and write a page with old and new curves. Returns the folder of the frozen baseline, relative to this one."""
    from reports.compare import write_comparison

    frozen = read_provenance(folder).frozen
    aside = folder / "replaced" / now.strftime("%Y%m%dT%H%M%SZ")
    aside.mkdir(parents=True)
    write_comparison({"old baseline": previous, "new baseline": list(runs)}, aside, metric=rule.metric, title=f"Baseline {folder.name}: old and new", rule=rule)
    shutil.move(folder / FILE, aside / FILE)
    for run in previous:
        shutil.move(folder / run.path.name, aside / run.path.name)
    return frozen or f"replaced/{aside.name}"


def _provenance(runs: Sequence[Run], entries: list[Entry], rule: JudgeRule, declared: Declared, command: str, now: datetime, claim: Claim | None) -> Provenance:
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
        dirty=any(run.manifest.get("dirty", claim is None) is not False for run in runs),
        machine=read_machine(first),
        devices=first.manifest.get("devices"),
        versions=dict(first.manifest.get("versions") or {}),
        notes=_notes(runs),
        runs=entries,
        rule=rule.model_dump(),
    )


def _notes(runs: Sequence[Run]) -> list[str]:
    notes = [f"{run.name}: {note.kind}: {note.text}" for run in runs for note in run.notes]
    if len(runs) < FEW_RUNS:
        notes.append(f"{len(runs)} run(s): below {FEW_RUNS} a baseline is descriptive or nearly so")
    return notes
