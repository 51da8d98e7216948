"""What runs inside a reward worker process: the user's function, one sample at a time, under a time limit.

The soft limit is an interval timer whose signal raises here; code that never returns to the interpreter does not notice it, and the pool then kills the
process. `progress` is shared memory in which a worker says which sample of a chunk it is on, so that the pool can name the guilty one.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from typing import Any, NamedTuple

from vime.errors import UserError
from vime.rewards import registry

MAX_ERROR = 500  # characters of an error text
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Item(NamedTuple):
    """One answer on its way to a worker. `context` holds what the function asked for by name."""

    sample_id: str
    text: str
    label: Any
    metadata: Mapping[str, Any]
    context: Mapping[str, Any]


class Outcome(NamedTuple):
    """A score (possibly infinite: the pool refuses it) or why there is none."""

    sample_id: str
    value: float | None
    error: str | None


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker loads."""

    name: str
    args: dict[str, Any]
    timeout_s: float


@dataclass(frozen=True)
class Loaded:
    """What came of loading: the context names the function wants, or the message of a `UserError`."""

    wants: tuple[str, ...]
    error: str | None


class SoftTimeLimit(BaseException):
    """Raised in a reward that ran too long. Not an Exception: a grader's own `except Exception` must not turn it into a score."""


@dataclass
class _Process:
    spec: WorkerSpec
    progress: Any  # shared int64 array
    function: registry.Reward | None
    loaded: Loaded


_process: _Process | None = None


def start(spec: WorkerSpec, progress: Any, ready: Synchronized) -> None:
    """Initializer of a worker process; never raises, what went wrong is told by `loaded`."""
    global _process
    _die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool's handler would wait for code that never returns to the interpreter
    function, loaded = _load(spec)
    _process = _Process(spec, progress, function, loaded)
    with ready.get_lock():
        ready.value += 1


def loaded() -> Loaded:
    """Task: what this worker's loading came to."""
    assert _process is not None
    return _process.loaded


def score_chunk(slot: int, items: Sequence[Item], budget_s: float) -> list[Outcome]:
    """Task: score items in order until all are done or `budget_s` is spent; at least one. The caller sends the rest again."""
    assert _process is not None
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + budget_s
    for position, item in enumerate(items):
        _process.progress[slot] = position
        outcomes.append(_score(_process, item))
        if time.monotonic() >= deadline:
            break
    _process.progress[slot] = len(items)
    return outcomes


def _score(process: _Process, item: Item) -> Outcome:
    assert process.function is not None
    limit = process.spec.timeout_s
    started = time.monotonic()
    signal.signal(signal.SIGALRM, _raise_limit)  # each time: a reward may have put its own there
    try:
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            value = process.function(item.text, item.label, item.metadata, **item.context, **process.spec.args)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except SoftTimeLimit:
        return Outcome(item.sample_id, None, timeout_text(limit))
    except BaseException as error:  # noqa: BLE001  a reward may raise anything, SystemExit included; it marks its sample
        return Outcome(item.sample_id, None, _error_text(error))
    if time.monotonic() - started > limit:  # it swallowed the limit
        return Outcome(item.sample_id, None, timeout_text(limit))
    return _outcome(item.sample_id, value)


def timeout_text(limit: float) -> str:
    """The reward error of a sample that ran too long."""
    return f"timeout: no score within reward.timeout_s {limit:g} s"


def _outcome(sample_id: str, value: Any) -> Outcome:
    if value is None:
        return Outcome(sample_id, None, "returned None")
    number: float | None = None
    if not isinstance(value, (str, bytes)):
        with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):  # a tensor of several elements raises RuntimeError
            number = float(value)
    if number is None:
        return Outcome(sample_id, None, f"returned a {type(value).__name__}, not a number: {value!r}"[:MAX_ERROR])
    if math.isnan(number):
        return Outcome(sample_id, None, "returned NaN")
    return Outcome(sample_id, number, None)


def _error_text(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""  # noqa: PTH119
    return f"{type(error).__name__}: {error}"[:MAX_ERROR] + place


def _load(spec: WorkerSpec) -> tuple[registry.Reward | None, Loaded]:
    try:
        function = registry.resolve(spec.name)
        return function, Loaded(registry.wanted_context(spec.name, function, spec.args), None)
    except UserError as error:
        return None, Loaded((), str(error))
    except BaseException as error:  # noqa: BLE001  importing a user's module may even exit; without a message the pool would only see a dead worker
        return None, Loaded((), f"reward.name {spec.name!r}: loading it fails: {_error_text(error)}")


def _raise_limit(signum: int, frame: Any) -> None:
    raise SoftTimeLimit


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, so that a killed run leaves nothing behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it ended before the kernel was asked
        os._exit(1)
