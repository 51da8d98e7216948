"""Ctrl-C and SIGTERM: a run ends once, in order.

Ray's C code swallows what a signal handler raises inside it, or makes a SystemError of it. So a signal is only noted while Ray is waited for, in slices, and
raised between them (`shielded`, `check`); anywhere else it is raised at once. Later signals are ignored: the first one is being dealt with.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from vime.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SLICE_S = 0.2  # of a wait: how late a signal may be noticed

_noted: int | None = None
_shields = 0


def install() -> None:
    """Handle the signals of this process, which must be a command of ours; in its main thread."""
    for number in SIGNALS:
        signal.signal(number, _handle)


def _handle(signum: int, frame: FrameType | None) -> None:
    global _noted
    if _noted is None:
        _noted = signum
        if not _shields:
            raise Interrupted(signum)


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Inside, a signal is noted and not raised. What is inside must end soon; `check` comes after it."""
    global _shields
    _shields += 1
    try:
        yield
    finally:
        _shields -= 1


def check() -> None:
    """Raise Interrupted when a signal came, as often as it is asked: nothing waits for anything any more."""
    if _noted is not None:
        raise Interrupted(_noted)


@contextlib.contextmanager
def kept_handlers() -> Iterator[None]:
    """Handlers that the body replaces (ray.init does) are put back."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
