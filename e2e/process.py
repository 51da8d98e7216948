"""The runner's side of a guarded run: start it, see whether it lives, stop it, learn how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 4.0  # from SIGTERM to SIGKILL; with the kernel's and Ray's moments this stays below the 10 s that Ctrl-C may take
HARD_S = 4.0  # what a guard gets beyond the grace before it is killed itself


@dataclass(frozen=True)
class Exit:
    """How a process ended: its exit code, or the signal that killed it; both None when the guard itself was killed and nobody saw."""

    code: int | None
    signal: str | None
    by_itself: bool = True  # before anybody stopped it
    left_over: tuple[str, ...] = ()  # command lines of processes that the run left behind and the guard killed

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {self.signal}"
        return "lost: its guard was killed" if self.code is None else f"exit code {self.code}"


class GuardedProcess:
    """A command under `e2e.guard`, its output in a file. A context manager: leaving it stops whatever still runs.

    `held` are descriptors that the guard keeps open as long as anything of the run is alive: the locks of its devices.
    """

    def __init__(self, command: Sequence[str], output: Path, cwd: Path, environment: Mapping[str, str] | None = None, held: Sequence[int] = ()):
        self._read, write = os.pipe()
        guard = [sys.executable, "-m", "e2e.guard", "--status-fd", str(write), "--parent", str(os.getpid()), "--grace", str(GRACE_S), "--", *command]
        root = str(Path(__file__).resolve().parents[1])
        variables = {**os.environ, **(environment or {})}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (root, variables.get("PYTHONPATH"))))
        with output.open("ab") as out:
            self._guard = subprocess.Popen(
                guard, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cwd, env=variables, pass_fds=(write, *held), start_new_session=True
            )
        os.close(write)
        self._exit: Exit | None = None

    @property
    def pid(self) -> int:
        """Of the guard: SIGTERM to it ends the run and everything below it."""
        return self._guard.pid

    def __enter__(self) -> GuardedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        os.close(self._read)

    def wait(self, seconds: float) -> Exit | None:
        """How the run ended, or None while it still runs after `seconds`."""
        if self._exit is None and select.select([self._read], [], [], seconds)[0]:
            self._exit = self._ended(os.read(self._read, 1 << 20))
        return self._exit

    def stop(self) -> Exit:
        """End the run: SIGTERM, a grace, SIGKILL. Returns within about 10 s, also on a second Ctrl-C."""
        if self._exit is None:
            with contextlib.suppress(ProcessLookupError):
                self._guard.send_signal(signal.SIGTERM)
            end = self.wait(GRACE_S + HARD_S)
            if end is None:
                self._guard.kill()  # its children get the parent-death signal
                end = self.wait(HARD_S) or Exit(None, None, by_itself=False)
            self._exit = end
        return self._exit

    def _ended(self, status: bytes) -> Exit:
        self._guard.wait(HARD_S)
        if not status:
            return Exit(None, None, by_itself=False)
        told = json.loads(status)
        code = int(told["returncode"])
        name = signal.Signals(-code).name if code < 0 else None
        return Exit(code if code >= 0 else None, name, not told["stopped"], tuple(told["left_over"]))
