"""A results root: every declared cell with its runs and verdicts. None disappears: a cell without a run is NOT_RUN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.outcome import Disposition, Outcome
from reports.errors import ReportError
from reports.verdict import SCHEMA_VERSION, Verdict, read_verdict

if TYPE_CHECKING:
    from matrix.loader import DeclaredCell, Matrix

NOT_RUNS = ("verdicts", "superseded")  # folders of a cell that hold no run to show


@dataclass(frozen=True)
class Judgement:
    """One file of <root>/<cell key>/verdicts/. `verdict` is None where the runner wrote why there was nothing to judge."""

    path: Path
    time: datetime
    outcome: Outcome
    reasons: tuple[str, ...]
    verdict: Verdict | None = None
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class CellResult:
    """A declared cell (or a folder of the root that no declaration knows) and what is there of it."""

    id: str
    key: str
    declared: bool
    disposition: str
    recipe: str
    model: str
    tiers: tuple[str, ...]
    runs: tuple[Path, ...]
    history: tuple[Judgement, ...]  # oldest first
    remark: str = ""  # quarantine, or that the cell is not declared
    baseline: Path | None = None
    metric: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def latest(self) -> Judgement | None:
        return self.history[-1] if self.history else None

    @property
    def outcome(self) -> Outcome:
        return self.latest.outcome if self.latest else Outcome.NOT_RUN

    @property
    def verdict(self) -> Verdict | None:
        return self.latest.verdict if self.latest else None

    @property
    def title(self) -> str:
        """The outcome with the kind of evidence."""
        return self.verdict.title if self.verdict else str(self.outcome)

    @property
    def reasons(self) -> tuple[str, ...]:
        if self.latest:
            return self.latest.reasons
        return (f"{len(self.runs)} run(s), not judged yet" if self.runs else "no run and no verdict in the results",)

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.latest.seeds if self.latest else ()


def read_results(root: Path, matrix_root: Path | None = None) -> list[CellResult]:
    """Every cell of the matrix and every other folder of `root` that holds runs or verdicts, by id.

    Raises ReportError when the root does not exist or the declarations do not load: a page without the declared cells would hide what did not run.
    """
    from matrix import load
    from matrix.problem import MatrixError

    if not root.is_dir():
        raise ReportError(f"{root}: no such results directory")
    try:
        matrix = load(matrix_root)
    except MatrixError as error:
        raise ReportError(f"the matrix cannot be loaded, so the declared cells are not known: {error.problems[0]}") from None
    cells = [_declared(root, matrix, cell) for _, cell in sorted(matrix.cells.items())]
    known = {cell.key for cell in cells}
    return cells + [_undeclared(folder) for folder in sorted(root.iterdir()) if folder.is_dir() and folder.name not in known and _holds_results(folder)]


def _declared(root: Path, matrix: Matrix, cell: DeclaredCell) -> CellResult:
    from matrix import baseline_directory
    from matrix.problem import MatrixError
    from matrix.resolver import model_text

    folder, quarantine = root / cell.key, cell.quarantined
    history = tuple(_history(folder))
    stale = bool(history and history[-1].verdict and history[-1].verdict.stale)
    try:
        model, baseline = model_text(matrix, cell), baseline_directory(cell, matrix)
    except (MatrixError, OSError):
        model, baseline = "", None  # its warm start is missing: the cell still shows, as what it is
    return CellResult(
        id=str(cell.id),
        key=cell.key,
        declared=True,
        disposition=str(Disposition.STALE if stale and cell.disposition is Disposition.REQUIRED else cell.disposition),
        recipe=cell.recipe.value.name,
        model=model,
        tiers=cell.tiers,
        runs=tuple(_runs(folder)),
        history=history,
        remark=f"quarantined until {quarantine.expires} by {quarantine.owner} ({quarantine.issue}): {quarantine.reason}" if quarantine else "",
        baseline=baseline,
        metric=cell.recipe.value.judge.metric,
    )


def _undeclared(folder: Path) -> CellResult:
    history = tuple(_history(folder))
    verdict = history[-1].verdict if history else None
    recipe = verdict.declared.recipe if verdict else None
    return CellResult(folder.name, folder.name, False, "undeclared", recipe or "", "", (), tuple(_runs(folder)), history, "not declared in the matrix")


def _holds_results(folder: Path) -> bool:
    return (folder / "verdicts").is_dir() or any(True for _ in _runs(folder))


def _runs(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir() and path.name not in NOT_RUNS and ((path / "metrics.jsonl").is_file() or (path / "manifest.json").is_file()):
                yield path


def _history(folder: Path) -> list[Judgement]:
    found = [_judgement(path) for path in (folder / "verdicts").glob("*.json")]
    return sorted(found, key=lambda judgement: (judgement.time, judgement.path.name))


def _judgement(path: Path) -> Judgement:
    """A verdict, or the runner's note that there was nothing to judge: {"outcome", "reasons", "runs": [{"seed"}], "time"}."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ReportError(f"{path}: not JSON ({error})") from None
    if "schema_version" in record and "rule" in record:
        verdict = read_verdict(path)
        seeds = tuple(run.seed for run in verdict.candidates if run.seed is not None)
        return Judgement(path, datetime.fromisoformat(verdict.created), verdict.outcome, tuple(verdict.reasons), verdict, seeds)
    if record.get("outcome") not in set(Outcome):
        raise ReportError(f"{path}: neither a verdict of schema {SCHEMA_VERSION} nor a runner's record (outcome {record.get('outcome')!r})")
    seeds = tuple(run["seed"] for run in record.get("runs", []) if isinstance(run.get("seed"), int))
    return Judgement(path, datetime.fromtimestamp(float(record.get("time", 0)), UTC), Outcome(record["outcome"]), tuple(record.get("reasons", [])), None, seeds)


def age(time: datetime, now: datetime | None = None) -> str:
    """How long ago, in the largest whole unit."""
    seconds = max(((now or datetime.now(UTC)) - time).total_seconds(), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
