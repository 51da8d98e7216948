"""pytest's view of the matrix: a file of declared cells collects to one item per cell; the item runs the cell and carries its verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from e2e.selection import Selection
    from e2e.verdict import CellVerdict
    from matrix.loader import DeclaredCell

VERDICT = "vime_verdict"  # name of the user property that carries the verdict, also from xdist's workers


def as_property(cell: DeclaredCell, verdict: CellVerdict) -> dict[str, Any]:
    """A verdict as plain data, which passes from a worker to its controller."""
    from e2e.verdict import disposition

    return {**asdict(verdict), "outcome": None if verdict.outcome is None else str(verdict.outcome), "disposition": disposition(cell, verdict)}


class CellNotPassed(Exception):
    """A cell whose outcome is not PASS; the message is what a person needs, without a traceback."""


class CellFile(pytest.File):
    """A YAML file under matrix/cells/."""

    selection: Selection

    def collect(self) -> Iterable[CellItem]:
        for cell in self.selection.cells:
            if Path(cell.declared.document.file).resolve() == self.path.resolve():
                yield CellItem.from_parent(self, name=str(cell), cell=cell, selection=self.selection)


class CellItem(pytest.Item):
    """One declared cell."""

    def __init__(self, *, cell: DeclaredCell, selection: Selection, **kwargs: Any):
        super().__init__(**kwargs)
        self.cell = cell
        self.selection = selection
        self.add_marker(getattr(pytest.mark, cell.marker))
        self.add_marker(pytest.mark.timeout(0))  # the runner keeps the limits of the hardware's declaration

    def runtest(self) -> None:
        from e2e.cell_run import run_cell
        from e2e.live import display
        from matrix.outcome import Disposition, Outcome

        capture = self.config.pluginmanager.getplugin("capturemanager")
        if reporter := self.config.pluginmanager.getplugin("terminalreporter"):  # xdist's workers have none
            reporter.ensure_newline()
        with capture.global_and_fixture_disabled(), display() as shown:
            verdict = run_cell(self.selection.matrix, self.cell, self.selection.options, shown)
        outcome = verdict.outcome
        self.user_properties.append((VERDICT, as_property(self.cell, verdict)))
        if outcome is None or outcome is Outcome.PASS:
            return
        if outcome is Outcome.NOT_RUN:
            pytest.skip(f"NOT_RUN: {verdict.reasons[0]}")  # pytest's word for it; the exit code is the outcome's
        text = f"{self.cell}: {outcome}\n" + "\n".join(f"  {reason}" for reason in verdict.reasons)
        if self.cell.disposition is Disposition.QUARANTINED and self.cell.quarantined is not None:
            entry = self.cell.quarantined
            pytest.xfail(f"{outcome}, quarantined until {entry.expires} by {entry.owner} ({entry.issue}): {entry.reason}")
        if self.cell.disposition is Disposition.EXPERIMENTAL:
            pytest.xfail(f"{outcome}, experimental: {verdict.reasons[0] if verdict.reasons else ''}")
        raise CellNotPassed(text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from e2e.leases import LeaseError
        from matrix.problem import MatrixError, SelectionError

        if isinstance(excinfo.value, CellNotPassed | MatrixError | SelectionError | LeaseError):
            return str(excinfo.value)
        if isinstance(excinfo.value, OSError) and excinfo.value.filename:
            return f"{self.cell}: {excinfo.value.filename}: {excinfo.value.strerror}: name another place with --results or --leases"
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.cell.declared.where("id").line - 1, str(self.cell)
