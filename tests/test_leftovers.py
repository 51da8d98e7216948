"""The check for processes that outlive the tests, on pytest runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

CONFTEST = """
import tests.leftovers as leftovers
from tests.leftovers import pytest_configure, pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown
leftovers.GRACE_S = 1.0
"""
START = """
import multiprocessing, os, subprocess, sys

def test_leaves(tmp_path):
    {body}

def test_clean():
    subprocess.run(["true"], check=True)
"""
SECONDS = f"{os.getpid()}.5"  # of sleep: tells our sleepers from those of another run on this machine
CHILD = f'subprocess.Popen(["sleep", "{SECONDS}"])'
ORPHAN = f"""subprocess.run([sys.executable, "-c", "import subprocess; subprocess.Popen(['sleep', '{SECONDS}'], start_new_session=True)"], check=True)"""
NOT_IN_ENVIRONMENT = f'subprocess.Popen(["sleep", "{SECONDS}"], env={{}}, start_new_session=True)'
WAITED_FOR = 'subprocess.Popen(["sleep", "0.3"])'
HELPER = "multiprocessing.get_context('spawn').Semaphore(1)"


def inner_run(folder: Path, body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_inner.py").write_text(textwrap.dedent(START).format(body=body))
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider", *arguments, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[1])


def sleepers() -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["cmdline"] == ["sleep", SECONDS] and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


@pytest.mark.parametrize("body", [CHILD, ORPHAN, NOT_IN_ENVIRONMENT], ids=["child", "orphan", "unmarked"])
def test_a_process_left_behind_fails_the_run_and_is_ended(tmp_path: Path, body: str) -> None:
    done = inner_run(tmp_path, body)
    assert done.returncode == 1, done.stdout
    assert "2 passed" in done.stdout
    assert f": sleep {SECONDS}" in done.stdout
    if body is not NOT_IN_ENVIRONMENT:
        assert "was left by test_inner.py::test_leaves (call)" in done.stdout
    assert sleepers() == []


@pytest.mark.parametrize("body", ["pass", WAITED_FOR, HELPER], ids=["nothing", "waited for", "helper"])
def test_nothing_left_passes(tmp_path: Path, body: str) -> None:
    done = inner_run(tmp_path, body)
    assert done.returncode == 0, done.stdout


def test_workers_of_xdist_look_for_themselves(tmp_path: Path) -> None:
    done = inner_run(tmp_path, ORPHAN, "-n", "2")
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("was left by test_inner.py::test_leaves (call)") == 1
    assert sleepers() == []
