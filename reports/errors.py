"""Errors a user of `python -m reports` can cause: printed as one line, exit code 2 (never an outcome's exit code)."""

from __future__ import annotations

from pathlib import Path

USAGE_EXIT_CODE = 2


class ReportError(Exception):
    """What, the value, where, and the mend, in one line."""


class UnreadableRun(ReportError):
    """A path that exists but holds no curve any reader understands. `judge` turns it into INVALID instead of stopping."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why
