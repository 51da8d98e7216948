"""Two process trees that work in turns: `vime train` with a pause before every block of steps, and whatever it is compared with."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from common import ROOT

STAGES = ("rollout", "reward", "train", "weight_sync")


def vime_driver(pipe: Any, file: str, overrides: list[str], out: str, block: int) -> None:
    """`vime train`, waiting for its turn before every block: sends ("turn", records of the last block) and waits for `verify_held_every` of the next.

    After the last step it sends ("end", records); the last step's record has no `wall`.
    """
    import dataclasses

    os.environ["RAY_worker_niceness"] = "0"  # Ray's default of 15 would let whatever else runs on the machine slow this side alone
    from vime.config.resolve import resolve
    from vime.loop import sync
    from vime.loop.start import start_training

    records: list[dict[str, float]] = []

    class TakingTurns(sync.SyncRun):
        begun: float | None = None

        def _step(self, step: int) -> dict[str, float]:
            if self.begun is not None:  # from the start of one step to the start of the next: records and the progress line count too
                records[-1]["wall"] = time.perf_counter() - self.begun
            if step % block == 0:
                pipe.send(("turn", list(records)))
                weights = dataclasses.replace(self.config.weights, verify_held_every=pipe.recv())
                self.weights.config = dataclasses.replace(self.config, weights=weights)
                records.clear()
            self.begun = time.perf_counter()
            metrics = super()._step(step)
            stages = {name: metrics[f"perf/{name}_s"] for name in STAGES}
            records.append({"step": step, **stages, "reward_mean": metrics["rollout/reward_mean"], "tokens": metrics["rollout/tokens"]})
            return metrics

    sync.SyncRun = TakingTurns  # type: ignore[misc]
    os.chdir(ROOT)
    start_training(resolve(Path(file), overrides), Path(out))
    pipe.send(("end", records))


class Turns:
    """Lets one of several process trees run at a time. Should this process be killed, a watchdog ends the trees: stopped ones would stay for ever."""

    def __init__(self, freeze: bool):
        self.freeze = freeze
        self.watchdog = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True)

    def watch(self, pid: int) -> None:
        """Call it as soon as the tree's first process was started."""
        assert self.watchdog.stdin is not None
        self.watchdog.stdin.write(f"{pid} {psutil.Process(pid).create_time()}\n".encode())
        self.watchdog.stdin.flush()

    def close(self) -> None:
        """End every tree that still runs."""
        assert self.watchdog.stdin is not None
        self.watchdog.stdin.close()
        self.watchdog.wait()

    def stop(self, pid: int) -> None:
        self._signal(pid, signal.SIGSTOP)

    def go(self, pid: int) -> None:
        self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: int) -> None:
        if not self.freeze:
            return
        top = psutil.Process(pid)
        for process in [*top.children(recursive=True), top]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def receive(pipe: Any, process: Any, name: str, wanted: str, timeout_s: float = 600) -> Any:
    """The next message, a pair whose first part is `wanted`; or an error that says which side ended."""
    until = time.monotonic() + timeout_s
    while not pipe.poll(0.002):
        if not process.is_alive() and not pipe.poll(0.2):
            raise SystemExit(f"{name} ended with exit code {process.exitcode}; its own error stands above")
        if time.monotonic() > until:
            raise SystemExit(f"{name} said nothing for {timeout_s:.0f} s")
    message = pipe.recv()
    if message[0] != wanted:
        raise SystemExit(f"{name} sent {message[0]!r} where {wanted!r} was due")
    return message


def end_trees(tops: list[tuple[int, float]]) -> None:
    """End processes, given by id and the time they were created at, and all they started, stopped or not."""
    for pid, created in tops:
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(pid)
            if top.create_time() != created:
                continue  # it ended, and its number was given away
            top.suspend()  # so that it starts nothing new
            for process in [*top.children(recursive=True), top]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


if __name__ == "__main__":  # the watchdog: process ids on stdin, until whoever writes them is gone
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_trees([(int(pid), float(created)) for pid, created in map(str.split, sys.stdin)])
