"""Baselines: whole runs of the reference for one science hash, kept slimmed in matrix/baselines/<short hash>/ with their provenance.

baseline.json      provenance (see `Provenance`)
seed-<n>/          manifest.json and metrics.jsonl of one run, as the vime reader reads them
replaced/<time>/   old curves, and the review page, of a baseline that was replaced; the first of them is the frozen one that drift is measured against
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from datetime import date as Day
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from reports.claims import Claim
from reports.errors import ReportError, UnreadableRun
from reports.model import Run
from reports.readers import How, read_run, read_runs
from reports.readers.base import Reading
from reports.store import Blob

FILE = "baseline.json"
SCHEMA_VERSION = 2
READS = (1, 2)  # 1 had neither rule, claim, expiry, frozen ancestor nor store
VALID_DAYS = 180  # a baseline's age after which it is stale, unless it was recorded with another


class Entry(BaseModel):
    """One run. `sha` is of the run as recorded; `slim_sha` of what is kept, so that an edited file is noticed."""

    model_config = ConfigDict(extra="forbid")

    seed: int
    path: str
    sha: str
    slim_sha: str
    source: str
    source_seed: int | None = None  # where the run's own seed is none of a baseline's (0 to 99), that seed
    commit: str | None = None
    dirty: bool | None = None


class Replaced(BaseModel):
    """Why and by whose approval this baseline took another's place, and the hashes of the runs it replaced."""

    model_config = ConfigDict(extra="forbid")

    reason: str
    approver: str
    date: str
    previous: list[str]


class Provenance(BaseModel):
    """What baseline.json says."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA_VERSION
    science_hash: str | None = None
    recipe: str | None = None
    cell: str | None = None
    reward: dict[str, Any] | None = None
    metric: str
    planned_steps: int
    command: str
    date: str
    commits: list[str]
    dirty: bool
    machine: dict[str, Any]
    devices: Any = None
    versions: dict[str, str]
    notes: list[str] = []
    runs: list[Entry]
    replaced: Replaced | None = None
    rule: dict[str, Any] | None = None  # the JudgeRule the runs were checked by, as it was then
    claim: Claim | None = None  # what a contributor says of runs whose files do not say it
    expires: str | None = None  # date; None: VALID_DAYS after `date`
    frozen: str | None = None  # folder of the first baseline of this science, relative to this one
    drift: list[str] = []  # this one against the frozen one, a line a statistic
    store: str | None = None  # fsspec root that holds `files`
    files: list[Blob] = []

    @property
    def last_day(self) -> Day:
        """The last day on which the baseline is not stale."""
        return Day.fromisoformat(self.expires) if self.expires else (datetime.fromisoformat(self.date) + timedelta(days=VALID_DAYS)).date()

    def stale(self, today: Day | None = None) -> str:
        """Why the baseline is too old, or an empty text."""
        today = today or datetime.now(UTC).date()
        days = (today - datetime.fromisoformat(self.date).date()).days
        return f"the baseline is {days} days old and expired on {self.last_day}: record it anew" if today > self.last_day else ""


def load_baseline(source: Sequence[Path | Run] | Path | Run | None, format: How = None) -> tuple[list[Run], str]:
    """(runs, path of the baseline folder or ""). `source`: runs, run paths, URLs and baseline folders, mixed; None: no baseline.

    A baseline folder that is not there is no baseline; a run that is not there is an error. Raises ReportError for a folder whose files
    do not match their hashes.
    """
    items = [] if source is None else [source] if isinstance(source, Path | Run) else list(source)
    runs: list[Run] = []
    folder = ""
    for item in items:
        if isinstance(item, Run):
            runs.append(item)
        elif (item / FILE).is_file():
            runs += read_folder(item, format.cache if isinstance(format, Reading) else None)
            folder = str(item)
        elif item.exists() or "#" in item.name or ":/" in str(item):
            runs += read_runs([item], format)
        elif item.parent.name != "baselines":
            raise ReportError(f"--baseline {item}: no such run or baseline folder")
    return runs, folder


def read_provenance(folder: Path) -> Provenance:
    """Raises ReportError for a folder without a baseline or with one of another schema."""
    file = folder / FILE
    if not file.is_file():
        raise ReportError(f"{folder}: holds no {FILE}")
    try:
        found = Provenance.model_validate_json(file.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        raise ReportError(f"{file}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    if found.schema_version not in READS:
        raise ReportError(f"{file}: baseline of schema {found.schema_version}, this version reads {' and '.join(map(str, READS))}")
    return found


def read_folder(folder: Path, cache: Path | None = None) -> list[Run]:
    """The runs of a baseline folder, in order of their seeds, each held to the hash it was recorded with. `cache`: a folder of parsed curves."""
    runs = []
    for entry in sorted(read_provenance(folder).runs, key=lambda entry: entry.seed):
        try:
            run = read_run(folder / entry.path, Reading(cache=cache))
        except UnreadableRun as error:
            raise ReportError(f"{error}: the baseline is damaged: restore it from git") from None
        if slim_sha(run) != entry.slim_sha:
            raise ReportError(
                f"{folder / entry.path}: its curves do not match the hash in {FILE}: a baseline is changed only by `python -m reports baseline record`"
            )
        runs.append(run)
    return runs


def slim_sha(run: Run) -> str:
    """Hash of the curves as they lie in the folder (a slimmed run's `sha` is that of the whole run it came from)."""
    return run.data_sha


def read_machine(run: Run) -> dict[str, Any]:
    host = run.manifest.get("host")
    return dict(host) if isinstance(host, dict) else {"hostname": host} if host else {}


def write_json(path: Path, value: Any) -> None:
    """Write whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)
