"""A results root: every declared cell with its runs and verdicts. None disappears: a cell without a run is NOT_RUN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from matrix.outcome import Disposition, Outcome
from matrix.status import UNDECLARED, disposed, shown_age
from reports.errors import ReportError
from reports.heads import Head, Heads
from reports.verdict import Verdict, read_verdict

if TYPE_CHECKING:
    from matrix.declarations import Quarantined
    from matrix.loader import DeclaredCell, Matrix

NOT_RUNS = ("verdicts", "superseded")  # folders of a cell that hold no run to show


class State(StrEnum):
    """The one word a cell is counted and filtered under. They are disjoint: the counts of a page add up to its cells."""

    FAILED = "failed"
    INVALID = "invalid"
    INCOMPLETE = "incomplete"
    UNDECIDED = "undecided"
    QUARANTINED = "quarantined"
    STALE = "stale"
    NO_BASELINE = "no baseline"
    INFRA = "infra"
    NOT_RUN = "not run"
    EXACT = "passed (exactness)"
    PASSED = "passed"


_STATES = {
    Outcome.FAIL: State.FAILED,
    Outcome.INVALID: State.INVALID,
    Outcome.INCOMPLETE: State.INCOMPLETE,
    Outcome.INCONCLUSIVE: State.UNDECIDED,
    Outcome.NO_BASELINE: State.NO_BASELINE,
    Outcome.INFRA: State.INFRA,
    Outcome.NOT_RUN: State.NOT_RUN,
    Outcome.PASS: State.PASSED,
}


@dataclass(frozen=True)
class CellResult:
    """A declared cell (or a folder of the root that no declaration knows) and what is there of it."""

    id: str
    key: str
    folder: Path
    declared: bool
    disposition: str
    history: tuple[Head, ...]  # oldest first
    remark: str = ""  # why the disposition is not simply `required`
    recipe: str = ""
    model: str = ""  # as `matrix.resolver.model_text` has it
    model_name: str = ""
    family: str = ""
    hardware: str = ""
    mode: str = ""
    variant: str = ""
    tiers: tuple[str, ...] = ()
    unvalidated: str = ""
    quarantined: Quarantined | None = None
    baseline: Path | None = None
    metric: str = ""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def latest(self) -> Head | None:
        return self.history[-1] if self.history else None

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.latest.outcome) if self.latest else Outcome.NOT_RUN

    @property
    def state(self) -> State:
        if self.disposition == Disposition.QUARANTINED:
            return State.QUARANTINED
        if self.outcome is Outcome.NOT_RUN:
            return State.NOT_RUN
        if self.disposition == Disposition.STALE:
            return State.STALE
        exact = self.outcome is Outcome.PASS and self.latest is not None and self.latest.evidence == "exactness"
        return State.EXACT if exact else _STATES[self.outcome]

    @property
    def title(self) -> str:
        """The outcome with the kind of evidence."""
        return self.latest.title if self.latest else str(self.outcome)

    @cached_property
    def runs(self) -> tuple[Path, ...]:
        return tuple(_runs(self.folder))

    @property
    def reasons(self) -> tuple[str, ...]:
        if self.latest:
            return tuple(self.latest.reasons)
        count = len(self.runs)
        return (f"{count} run{'s' if count > 1 else ''}, not judged yet" if count else "no run and no verdict in the results",)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.latest.seeds) if self.latest else ()

    @property
    def age_s(self) -> float | None:
        time = self.latest.time if self.latest else None
        return max((self.now - time).total_seconds(), 0.0) if time else None

    @property
    def age(self) -> str:
        return shown_age(self.age_s)

    @property
    def owner(self) -> str:
        return self.quarantined.owner if self.quarantined else ""

    @property
    def verdict_file(self) -> Path | None:
        return self.folder / "verdicts" / self.latest.file if self.latest else None

    def verdict(self) -> Verdict | None:
        """The latest verdict in full; None where there is none that can be read."""
        if self.verdict_file is None or self.latest is None or self.latest.broken:
            return None
        try:
            return read_verdict(self.verdict_file)
        except ReportError:
            return None


def read_results(root: Path, matrix_root: Path | None = None, kept: Path | None = None, processes: int = 1) -> list[CellResult]:
    """Every cell of the matrix, by id, and every other folder of `root` that holds runs or verdicts. `kept`: a file in which the heads of verdicts are kept.

    Raises ReportError when the root does not exist or the declarations do not load: a page without the declared cells would hide what did not run.
    A quarantine that has expired does not stop a page: its cell is shown as required again, with the remark.
    """
    from matrix import load
    from matrix.problem import MatrixError

    if not root.is_dir():
        raise ReportError(f"{root}: no such results directory")
    try:
        matrix = load(matrix_root, today=date.min)
    except MatrixError as error:
        raise ReportError(f"the matrix cannot be loaded, so the declared cells are not known: {error.problems[0]}") from None
    return results_of(root, matrix, Heads(root, kept), processes)


def results_of(root: Path, matrix: Matrix, heads: Heads, processes: int = 1, now: datetime | None = None) -> list[CellResult]:
    """As `read_results`, of a loaded matrix."""
    now = now or datetime.now(UTC)
    known = {cell.key for cell in matrix.cells.values()}
    others = sorted(path.name for path in root.iterdir() if path.name not in known and path.is_dir())
    heads.fill([*known, *others], processes)
    cells = [_declared(root, matrix, cell, heads.of(cell.key), now) for _, cell in sorted(matrix.cells.items())]
    cells += [_undeclared(root / name, heads.of(name), now) for name in others if _holds_results(root / name)]
    heads.save()
    return cells


def _declared(root: Path, matrix: Matrix, cell: DeclaredCell, history: tuple[Head, ...], now: datetime) -> CellResult:
    from matrix.problem import MatrixError
    from matrix.resolver import SHORT, model_text, science_hash

    judged = history[-1].judged() if history else None
    try:
        model, science = model_text(matrix, cell), science_hash(cell, matrix)
    except (MatrixError, OSError):
        model, science = "", None  # its warm start is missing: the cell still shows, as what it is
    disposition, remark = disposed(matrix, cell, judged, now, science)
    baseline = matrix.root / "baselines" / science[:SHORT] if science else None
    return CellResult(
        id=str(cell.id),
        key=cell.key,
        folder=root / cell.key,
        declared=True,
        disposition=str(disposition),
        history=history,
        remark=remark,
        recipe=cell.recipe.value.name,
        model=model,
        model_name=cell.id.model,
        family=cell.model.value.family,
        hardware=cell.id.hardware,
        mode=cell.id.mode,
        variant=cell.id.variant or "",
        tiers=cell.tiers,
        unvalidated=cell.unvalidated or "",
        quarantined=cell.quarantined,
        baseline=baseline,
        metric=cell.rule.metric,
        now=now,
    )


def _undeclared(folder: Path, history: tuple[Head, ...], now: datetime) -> CellResult:
    recipe = (history[-1].recipe if history else None) or ""
    return CellResult(folder.name, folder.name, folder, False, UNDECLARED, history, "not declared in the matrix", recipe, now=now)


def _holds_results(folder: Path) -> bool:
    return (folder / "verdicts").is_dir() or any(True for _ in _runs(folder))


def _runs(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            if path.is_dir() and path.name not in NOT_RUNS and ((path / "metrics.jsonl").is_file() or (path / "manifest.json").is_file()):
                yield path


def counts(results: Sequence[CellResult]) -> dict[State, int]:
    """How many cells in each state; they add up to the number of cells."""
    found = Counter(result.state for result in results)
    return {state: found[state] for state in State if found[state]}
