"""The hooks of a pytest session that runs cells; registered by the plugin only when cells were asked for."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from e2e.items import VERDICT, CellFile, CellItem, as_property
from e2e.selection import Selection
from e2e.summary import exit_code, table, write_report
from e2e.verdict import unjudged
from matrix.outcome import Outcome


class CellSession:
    """Collects the cells, holds the collection against the declaration, and ends the session with the verdict table, the report and the outcome's exit code."""

    def __init__(self, config: pytest.Config, selection: Selection):
        self.config = config
        self.selection = selection
        self.verdicts: list[dict[str, Any]] = []
        self.broken = 0  # failures that carry no verdict

    def pytest_report_header(self) -> str:
        cells, told = self.selection.cells, self.config.getoption("--tier") or self.config.getoption("--cell")
        tiers = [tier for tier in self.selection.matrix.tiers if all(tier in cell.tiers for cell in cells)]
        kinds = ", ".join(sorted({cell.id.hardware for cell in cells}))
        chosen = "as asked" if told else f"tier {tiers[0]}, by default" if tiers else "every one, by default: what is not here is reported"
        return f"cells: {len(cells)} of {len(self.selection.matrix.cells)} on {kinds} ({chosen}; --tier and --cell choose others)"

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.File | None:
        if file_path.suffix != ".yaml" or file_path.resolve().parent != (self.selection.matrix.root / "cells").resolve():
            return None
        file: CellFile = CellFile.from_parent(parent, path=file_path)
        file.selection = self.selection
        return file

    @pytest.hookimpl(trylast=True, wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """After every deselection: what is left must be what was declared."""
        yield
        message = self._mismatch({str(item.cell) for item in items if isinstance(item, CellItem)})
        if message and not hasattr(self.config, "workerinput"):  # of a worker, the controller says it, below
            raise pytest.UsageError(message)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        message = self._mismatch({name.rpartition("::")[2] for name in ids})
        if message:
            pytest.exit(f"ERROR: {message}", returncode=pytest.ExitCode.USAGE_ERROR)

    def _mismatch(self, collected: set[str]) -> str | None:
        declared = {str(cell) for cell in self.selection.cells}
        missing, extra = sorted(declared - collected), sorted(collected - declared)
        if not missing and not extra:
            return None
        told = "; ".join(filter(None, (f"not collected: {', '.join(missing)}" if missing else "", f"not asked for: {', '.join(extra)}" if extra else "")))
        return f"the cells collected are not those declared ({told}): choose cells with --cell and --tier, not with -k or a path"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = [dict(value) for name, value in report.user_properties if name == VERDICT and isinstance(value, dict)] if report.when == "call" else []
        if report.when not in ("setup", "call", "teardown") and report.failed:  # xdist's word for a worker that is gone
            found = [self._without_end(Outcome.INCOMPLETE, "the pytest worker that ran it was lost", report.nodeid.rpartition("::")[2])]
        self.verdicts += found
        self.broken += report.failed and not found

    def _without_end(self, outcome: Outcome, reason: str, name: str) -> dict[str, Any]:
        """The verdict, kept in the results root too, of a cell that has none from its item."""
        cell = self.selection.matrix.cell(name)
        return as_property(cell, unjudged(self.selection.matrix, cell, self.selection.options.root, outcome, reason, keep=self.selection.options.judge))

    def _told(self) -> list[dict[str, Any]]:
        """The verdict of every cell selected: one that the session did not come to is NOT_RUN."""
        known = {verdict["cell"] for verdict in self.verdicts}
        self.verdicts += [
            self._without_end(Outcome.NOT_RUN, "the session ended before its turn", str(cell)) for cell in self.selection.cells if str(cell) not in known
        ]
        return self.verdicts

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """The exit code is the most severe blocking outcome's, where cells ran and nothing else failed."""
        if self.verdicts and not self.broken and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not hasattr(self.config, "workerinput"):
            session.exitstatus = exit_code(self._told())

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.verdicts:
            return
        terminalreporter.section("cells")
        for line in table(self._told()):
            terminalreporter.write_line(line)
        if self.selection.options.judge:
            directory = self.config.invocation_params.dir / self.config.getoption("--report")
            terminalreporter.write_line(write_report(self.selection.options.root, directory, self.selection.matrix.root))
