"""The hooks of a pytest session that runs cells; registered by the plugin only when cells were asked for."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from e2e.items import VERDICT, CellFile, CellItem
from e2e.selection import Selection
from e2e.summary import exit_code, table, write_report


class CellSession:
    """Collects the cells, holds the collection against the declaration, and ends the session with the verdict table, the report and the outcome's exit code."""

    def __init__(self, config: pytest.Config, selection: Selection):
        self.config = config
        self.selection = selection
        self.verdicts: list[dict[str, Any]] = []
        self.broken = 0  # failures that carry no verdict

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
        self.verdicts += found
        self.broken += report.failed and not found

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
        """The exit code is the most severe blocking outcome's, where cells ran and nothing else failed."""
        if self.verdicts and not self.broken and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not hasattr(self.config, "workerinput"):
            session.exitstatus = exit_code(self.verdicts)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.verdicts:
            return
        terminalreporter.section("cells")
        for line in table(self.verdicts):
            terminalreporter.write_line(line)
        if self.selection.options.judge:
            directory = self.config.invocation_params.dir / self.config.getoption("--report")
            terminalreporter.write_line(write_report(self.selection.options.root, directory, self.selection.matrix.root))
