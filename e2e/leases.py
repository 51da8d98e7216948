"""Devices of this machine, leased to runs through file locks: no two runs share one, and the kernel frees a dead holder's.

The locks are `flock`s taken here and not through filelock, because their descriptors go on to the run's guard: a device stays taken until the last process
of the run is gone, also when the worker that leased it was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.2
SAY_EVERY_S = 30.0


class LeaseError(Exception):
    """A request that this machine can never, or could not in time, satisfy."""


@dataclass(frozen=True)
class Lease:
    """Devices held, in order, and the descriptors whose locks hold them: for a process to inherit (`pass_fds`)."""

    devices: tuple[int, ...]
    descriptors: tuple[int, ...]


@dataclass(frozen=True)
class DevicePool:
    """The devices of one platform on this machine. `allowed` are those the caller may use (a visible-devices variable may have narrowed them)."""

    name: str
    allowed: tuple[int, ...]
    contiguous: bool = False  # whether a lease must be neighbours, starting at a multiple of its size where such a block is allowed
    directory: Path | None = None

    @contextmanager
    def lease(self, count: int, holder: str, timeout: float, waiting: Callable[[str], None] = lambda text: None) -> Iterator[Lease]:
        """Hold `count` devices, all or none. Requests for the same devices are served in turn: one for many is not overtaken for ever by many for one.

        `waiting` is told now and then who holds the devices. Raises LeaseError when the pool is too small or `timeout` seconds pass.
        """
        choices = self._choices(count, holder)
        with ExitStack() as locks:
            end = time.monotonic() + timeout
            held = self._acquire(choices, count, holder, end, _Waiting(self, count, waiting), locks)
            yield Lease(tuple(held), tuple(held.values()))

    def place(self) -> Path:
        place = (self.directory or Path(tempfile.gettempdir()) / f"vime-leases-{os.getuid()}") / self.name
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _choices(self, count: int, holder: str) -> list[tuple[int, ...]]:
        """Sets of devices to take from: one set of all where any `count` of them do, else every block."""
        if count > len(self.allowed):
            raise LeaseError(f"{holder} needs {count} devices of {self.name}; {len(self.allowed)} may be used here ({list(self.allowed)})")
        if not self.contiguous:
            return [self.allowed]
        blocks = [tuple(range(first, first + count)) for first in self.allowed if set(self.allowed).issuperset(range(first, first + count))]
        aligned = [block for block in blocks if block[0] % count == 0]
        if not blocks:
            raise LeaseError(f"{holder} needs {count} neighbouring devices of {self.name}; those that may be used here are {list(self.allowed)}")
        return aligned or blocks

    def _acquire(self, choices: list[tuple[int, ...]], count: int, holder: str, end: float, waiting: _Waiting, locks: ExitStack) -> dict[int, int]:
        with ExitStack() as turns:
            for device in sorted(self.allowed):  # in one order everywhere, so that no two requests wait for each other; disjoint ones never meet
                self._turn(device, holder, end, waiting, turns)
            while True:
                for wanted in choices:
                    held = self._try(wanted, count, holder)
                    if len(held) == count:
                        for descriptor in held.values():
                            locks.callback(os.close, descriptor)
                        return held
                    for descriptor in held.values():
                        os.close(descriptor)
                waiting.pause(holder, end)

    def _turn(self, device: int, holder: str, end: float, waiting: _Waiting, turns: ExitStack) -> None:
        while (descriptor := _lock(self.place() / f"turn-{device}.lock")) is None:
            waiting.pause(holder, end)
        turns.callback(os.close, descriptor)

    def _try(self, wanted: tuple[int, ...], count: int, holder: str) -> dict[int, int]:
        held: dict[int, int] = {}
        for device in wanted:
            if len(held) < count and (descriptor := _lock(self.place() / f"{device}.lock")) is not None:
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps({"holder": holder, "pid": os.getpid()}).encode(), 0)
                held[device] = descriptor
        return held

    def holders(self) -> str:
        """Who holds what, in words."""
        names = []
        for device in self.allowed:
            file = self.place() / f"{device}.lock"
            descriptor = _lock(file)
            if descriptor is not None:
                os.close(descriptor)
                continue
            with contextlib.suppress(ValueError, KeyError):  # taken in this very moment: not written yet
                told = json.loads(file.read_text())
                names.append(f"{told['holder']} (process {told['pid']}, device {device})")
        return ", ".join(names) or "nobody"


@dataclass
class _Waiting:
    """The pauses of one request: says who holds the devices now and then, and gives up at the end."""

    pool: DevicePool
    count: int
    tell: Callable[[str], None]
    said: float | None = None

    def pause(self, holder: str, end: float) -> None:
        now = time.monotonic()
        if now >= end:
            raise LeaseError(f"{holder} waited for {self.count} devices of {self.pool.name} in vain; held by {self.pool.holders()}")
        if self.said is None or now - self.said >= SAY_EVERY_S:
            self.said = now
            self.tell(f"waiting for {self.count} devices of {self.pool.name}; held by {self.pool.holders()}")
        time.sleep(min(POLL_S, end - now))


def _lock(file: Path) -> int | None:
    """The descriptor of an exclusive lock on `file`, or None while somebody else has it. It is not inherited unless a caller passes it on."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
