"""What the session needs of a remote worker: `vime.loop.workers.Worker` is one (a Ray actor), `LocalWorker` an object of this process (tests, tools)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from vime.errors import RunError


class Pending(Protocol):
    """The result of a call, not yet there."""

    def result(self, timeout_s: float, stage: str) -> Any:
        """Wait for it; raises `RunError` naming `stage` when it takes longer."""


class Handle(Protocol):
    """A worker under the name that errors use."""

    name: str

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Start `method`; a `Pending`."""


Gather = Callable[[Sequence[Any], float, str], list[Any]]  # pending, timeout_s, stage → results in order; the first failure ends the wait


class LocalPending:
    """A call running in a thread of this process."""

    def __init__(self, future: Future[Any], worker: str, method: str):
        self.future, self.worker, self.method = future, worker, method

    def result(self, timeout_s: float, stage: str) -> Any:
        try:
            return self.future.result(timeout_s)
        except TimeoutError:
            raise RunError(stage, f"{self.worker} did not finish {self.method} within {timeout_s:g} s") from None


class LocalWorker:
    """An object of this process as a worker: one call at a time, in a thread of its own."""

    def __init__(self, target: Any, name: str):
        self.target, self.name = target, name
        self.pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def call(self, method: str, *args: Any, **kwargs: Any) -> LocalPending:
        return LocalPending(self.pool.submit(getattr(self.target, method), *args, **kwargs), self.name, method)


def gather_local(pending: Sequence[LocalPending], timeout_s: float, stage: str) -> list[Any]:
    """`Gather` for local workers."""
    left = {item.future: item for item in pending}
    while left:
        done, _ = wait(left, timeout_s, FIRST_COMPLETED)
        if not done:
            raise RunError(stage, f"{', '.join(item.worker for item in left.values())} did not finish within {timeout_s:g} s")
        for future in done:
            left.pop(future).result(timeout_s, stage)
    return [item.result(timeout_s, stage) for item in pending]
