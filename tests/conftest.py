"""What every test gets: a run that leaves a process behind fails."""

from tests.leftovers import pytest_configure, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown

__all__ = ["pytest_configure", "pytest_sessionfinish", "pytest_terminal_summary", "pytest_testnodedown"]
