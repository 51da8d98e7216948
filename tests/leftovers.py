"""Fails a test run that leaves processes behind, naming the test that started each; tests/conftest.py uses it.

A process is ours when it descends from this pytest process, or when it inherited the mark that this run put into the environment: that also finds one whose
parent has ended, in whatever process session it is. pytest itself puts the running test's name into the environment, so a leftover knows where it is from.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

MARK = "VIME_TEST_RUN"
GRACE_S = 10.0  # Ray's processes take a few seconds to end after their driver
# Python's own helpers of a process; they end with it
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
KEY = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Leftover:
    """A process that outlived the tests."""

    pid: int
    command: str
    test: str

    def __str__(self) -> str:
        return f"process {self.pid} was left by {self.test}: {self.command[:200]}"


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK] = f"{os.getpid()}-{uuid.uuid4().hex}"  # each worker of pytest-xdist marks its own


@pytest.hookimpl(trylast=True)  # after the session's fixtures are torn down
def pytest_sessionfinish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workeroutput", None)
    if worker is None and getattr(session.config.option, "dist", "no") != "no":
        left = session.config.stash.get(KEY, [])  # pytest-xdist's controller starts only its workers, which look for themselves and tell it
    else:
        found = wait_until_none(lambda: ours(os.environ[MARK]), GRACE_S)
        end(found)
        left = [str(leftover) for leftover in found]
    session.config.stash[KEY] = left
    if worker is not None:
        worker["leftovers"] = left
    elif left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.setdefault(KEY, []).extend(getattr(node, "workeroutput", {}).get("leftovers", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for leftover in config.stash.get(KEY, []):
        terminalreporter.write_line(f"ERROR {leftover}", red=True)


def ours(mark: str) -> list[Leftover]:
    """Live processes of this run: descendants of this process and bearers of `mark`."""
    me = psutil.Process()
    descendants = {process.pid for process in me.children(recursive=True)}
    found = (_leftover(process, process.pid in descendants, mark) for process in psutil.process_iter() if process.pid != me.pid)
    return [leftover for leftover in found if leftover is not None]


def _leftover(process: psutil.Process, descendant: bool, mark: str) -> Leftover | None:
    try:
        with process.oneshot():
            environment = process.environ()
            command = " ".join(process.cmdline()) or process.name()
            helper = process.ppid() == os.getpid() and any(name in command for name in HELPERS)
            if process.status() == psutil.STATUS_ZOMBIE or helper or not (descendant or environment.get(MARK) == mark):
                return None
            return Leftover(process.pid, command, environment.get("PYTEST_CURRENT_TEST", "an unknown test"))
    except psutil.Error:  # it ended while we looked, or is another user's
        return None


def wait_until_none(look: Callable[[], list[Leftover]], seconds: float) -> list[Leftover]:
    """What `look` still finds after at most `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def end(leftovers: Iterable[Leftover]) -> None:
    """Kill them: the next run must not meet them."""
    for leftover in leftovers:
        if psutil.pid_exists(leftover.pid):
            psutil.Process(leftover.pid).kill()
