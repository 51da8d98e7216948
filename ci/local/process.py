"""Processes of jobs: each is the leader of a session of its own, its pid is written down, and what it leaves is ended by what was written down."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

GRACE_S = 10.0


class Running:
    """A job's shell, started. `pid` is also its session's id."""

    def __init__(self, commands: list[str], folder: Path, cwd: Path, environment: Mapping[str, str]):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        self.started = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-e", "-c", "\n".join(commands)],
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid
        (folder / "pid").write_text(f"{self.pid}\n")

    def wait(self) -> int:
        """The exit code: -1 where the shell was killed by a signal, which is what Buildkite reports of a lost agent."""
        code = self.process.wait()
        return code if code >= 0 else -1

    def family(self) -> list[psutil.Process]:
        """Everything of this job that still lives: its descendants, and all of its session."""
        found: dict[int, psutil.Process] = {}
        if self.process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                leader = psutil.Process(self.pid)
                found = {process.pid: process for process in (leader, *leader.children(recursive=True))}
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid:
                    found.setdefault(process.pid, process)
            except (ProcessLookupError, PermissionError):
                continue
        return list(found.values())

    def end(self, grace_s: float = GRACE_S) -> int:
        """End everything of the job: asked first, killed when it does not go. Returns how many processes there were. psutil never signals a reused pid."""
        alive = self.family()
        for process in alive:
            _send(process, signal.SIGTERM)
        left = _await(alive, grace_s)
        for process in left:
            _send(process, signal.SIGKILL)
        _await(left, 5.0)
        return len(alive)


def _await(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so long. A zombie has ended, whoever has yet to read its exit code."""
    deadline = time.monotonic() + seconds
    while processes := [process for process in processes if _runs(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return processes


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
