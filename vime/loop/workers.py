"""Handles to remote workers: a call that has a deadline and says what it was waiting for.

Ray is imported where it is used: it reads the token of its cluster (`cluster.py`) from the environment when it is imported, and never again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from vime.errors import RunError, UserError
from vime.interrupts import SLICE_S, check, shielded


class Pending:
    """The result of a remote call, not yet there."""

    def __init__(self, reference: Any, worker: str, method: str):
        self.reference, self.worker, self.method = reference, worker, method

    def result(self, timeout_s: float, stage: str) -> Any:
        """Wait for it.

        Raises what the worker raised if that is a UserError or RunError; RunError(stage, …) naming the worker when it died, failed otherwise, or took
        longer.
        """
        import ray
        from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError, RuntimeEnvSetupError

        if not wait([self.reference], timeout_s):
            raise RunError(stage, f"{self.worker} did not finish {self.method} within {timeout_s:g} s")
        try:
            with shielded():
                return ray.get(self.reference)
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, (UserError, RunError)):
                raise cause from None
            raise RunError(stage, f"{self.worker} failed in {self.method}: {type(cause).__name__}: {cause}") from error
        except (ActorDiedError, ActorUnavailableError, RayActorError, RuntimeEnvSetupError) as error:
            raise WorkerDied(stage, f"{self.worker} died in {self.method}: {death(str(error))}", self.worker) from None


class WorkerDied(RunError):
    """A worker's process is gone; `worker` is its name."""

    def __init__(self, stage: str, message: str, worker: str):
        super().__init__(stage, message)
        self.worker = worker


class Worker:
    """One remote worker (a Ray actor) under the name that errors use."""

    def __init__(self, actor: Any, name: str):
        self.actor, self.name = actor, name

    def call(self, method: str, *args: Any, **kwargs: Any) -> Pending:
        """Start `method` on the worker."""
        with shielded():
            return Pending(self.actor.call.remote(method, *args, **kwargs), self.name, method)


def call_all(workers: Sequence[Worker], method: str, *args: Any, timeout_s: float, stage: str) -> list[Any]:
    """The same call on every worker at once; their results in order. The first failure ends the wait."""
    pending = [worker.call(method, *args) for worker in workers]
    return gather(pending, timeout_s, stage)


def gather(pending: Sequence[Pending], timeout_s: float, stage: str) -> list[Any]:
    """Results in order. A failed worker is reported at once, also while others, who may wait for it in a collective, go on."""
    left = {item.reference: item for item in pending}
    while left:
        done = wait(list(left), timeout_s)
        if not done:
            names = ", ".join(item.worker for item in left.values())
            raise RunError(stage, f"{names} did not finish {pending[0].method} within {timeout_s:g} s")
        left.pop(done[0]).result(timeout_s, stage)
    return [item.result(timeout_s, stage) for item in pending]


def wait(references: Sequence[Any], timeout_s: float) -> list[Any]:
    """One that is done, none when the time ran out. Raises Interrupted soon after a signal."""
    import ray

    until = time.monotonic() + timeout_s
    while True:
        left = until - time.monotonic()
        with shielded():
            done, _ = ray.wait(list(references), num_returns=1, timeout=max(0.0, min(SLICE_S, left)))
        check()
        if done or left <= 0:
            return done


def death(report: str) -> str:
    """What a person can use of Ray's report of a dead actor, on one line."""
    pid, detail = re.search(r"pid: (\d+)", report), re.search(r"Worker exit detail: (.*?)\s*(There are some potential|$)", report, re.DOTALL)
    if pid and detail:
        return f"its process {pid[1]} was killed or crashed ({' '.join(detail[1].split())}): look at workers.log in the run directory, and for a short memory"
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason is known"
