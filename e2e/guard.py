"""`python -m e2e.guard`: runs one command and sees to it that nothing of it is left, whatever ends first: the command, the runner, or this process.

It is a small process between the runner and the run. As the subreaper of everything below it, it also inherits daemons that moved to sessions of their own
(Ray's do), so ending the run means ending its descendants, never a process found by name.

- The command gets a session of its own; when it ends, what it left behind gets a moment to go by itself, then is killed, and is reported.
- SIGTERM (or SIGINT, SIGHUP) here, or the runner's death: the command gets SIGTERM, and after `--grace` seconds everything is killed.
- Killed itself: the kernel kills the command (parent-death signal); Ray's own processes end with it.

One JSON line goes to the file descriptor `--status-fd`: {"returncode": int, "stopped": bool, "left_over": [command lines]}.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WAITED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
SETTLE_S = 3.0  # what a finished command's children get to end by themselves
KILL_S = 2.0  # what the kernel gets to take killed processes away


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.guard", description="Run a command and leave no process of it behind.")
    parser.add_argument("--status-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True, help="the runner's process id")
    parser.add_argument("--grace", type=float, default=6.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command")
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != options.parent:
        return 1  # the runner died before the parent-death signal was armed
    status = _run(command, options.grace)
    with os.fdopen(options.status_fd, "w") as out:
        out.write(json.dumps(status) + "\n")
    return 0


def _run(command: list[str], grace: float) -> dict[str, Any]:
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_in_child)  # noqa: PLW1509 - no threads here
    except OSError as error:
        print(f"cannot start {command[0]}: {error}", flush=True)
        return {"returncode": 127, "stopped": False, "left_over": []}
    stopped = _wait(lambda: child.poll() is not None)
    if stopped:
        child.send_signal(signal.SIGTERM)
        _wait(lambda: child.poll() is not None, grace)
    else:
        _wait(lambda: not _descendants(), SETTLE_S)
    left_over = [] if stopped else [_command_line(process) for process in _descendants()]
    _kill_all()
    return {"returncode": child.wait(), "stopped": stopped, "left_over": left_over}


def _in_child() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)


def _wait(done: Callable[[], bool], timeout: float | None = None) -> bool:
    """Wait until `done` or `timeout`; True when a signal to stop came first. Orphans that end meanwhile are reaped by `_descendants`' callers."""
    end = None if timeout is None else time.monotonic() + timeout
    while not done():
        left = 0.5 if end is None else min(0.2, end - time.monotonic())
        if left <= 0:
            return False
        received = signal.sigtimedwait(WAITED, left)
        if received is not None and received.si_signo != signal.SIGCHLD:
            return True
    return False


def _descendants() -> list[psutil.Process]:
    """Everything alive below this process; zombies are reaped on the way (the command's own is left to its Popen)."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.NoSuchProcess:
            continue
    return alive


def _kill_all() -> None:
    """SIGKILL every descendant until none is left: one killed late may have started another."""
    end = time.monotonic() + KILL_S
    while (alive := _descendants()) and time.monotonic() < end:
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=0.2)


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.NoSuchProcess:
        return f"process {process.pid}"


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


if __name__ == "__main__":
    sys.exit(main())
