"""Devices of this machine, leased to runs through file locks: no two runs share one, and the kernel frees a dead holder's at once."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

POLL_S = 0.2
SAY_EVERY_S = 30.0


class LeaseError(Exception):
    """A request that this machine can never, or could not in time, satisfy."""


@dataclass(frozen=True)
class DevicePool:
    """The devices of one hardware on this machine. `allowed` are those the caller may use (a visible-devices variable may have narrowed them)."""

    name: str
    allowed: tuple[int, ...]
    contiguous: bool = False  # whether a lease must be neighbours, starting at a multiple of its size
    directory: Path | None = None

    def _place(self) -> Path:
        place = self.directory or Path(tempfile.gettempdir()) / f"vime-leases-{os.getuid()}"
        (place / self.name).mkdir(parents=True, exist_ok=True)
        return place / self.name

    @contextmanager
    def lease(self, count: int, holder: str, timeout: float, waiting: Callable[[str], None] = lambda text: None) -> Iterator[tuple[int, ...]]:
        """Hold `count` devices, all or none. Requests are served in turn, so that one for many is not overtaken for ever by many for one.

        `waiting` is told now and then who holds the devices. Raises LeaseError when the pool is too small or `timeout` seconds pass.
        """
        if count > len(self.allowed):
            raise LeaseError(f"{holder} needs {count} devices of {self.name}; {len(self.allowed)} may be used here ({list(self.allowed)})")
        end = time.monotonic() + timeout
        held = self._acquire(count, holder, end, waiting)
        try:
            yield tuple(sorted(held))
        finally:
            for lock in held.values():
                lock.release()

    def _acquire(self, count: int, holder: str, end: float, waiting: Callable[[str], None]) -> dict[int, FileLock]:
        place, said = self._place(), 0.0
        turn = FileLock(place / "turn.lock")
        while time.monotonic() < end:
            try:
                with turn.acquire(timeout=POLL_S):
                    while time.monotonic() < end:
                        held = self._try(place, count, holder)
                        if held:
                            return held
                        said = self._say(place, count, said, waiting)
                        time.sleep(POLL_S)
            except Timeout:
                said = self._say(place, count, said, waiting)
        raise LeaseError(f"{holder} waited for {count} devices of {self.name} in vain; held by {self._holders(place)}")

    def _try(self, place: Path, count: int, holder: str) -> dict[int, FileLock]:
        for wanted in self._choices(count):
            held: dict[int, FileLock] = {}
            for device in wanted:
                lock = FileLock(place / f"{device}.lock")
                try:
                    lock.acquire(timeout=0)
                except Timeout:
                    continue
                held[device] = lock
                if len(held) == count:
                    for mine in held:
                        (place / f"{mine}.holder").write_text(json.dumps({"holder": holder, "pid": os.getpid()}))
                    return held
            for lock in held.values():
                lock.release()
        return {}

    def _choices(self, count: int) -> Iterator[Sequence[int]]:
        if not self.contiguous:
            yield self.allowed
            return
        allowed = set(self.allowed)
        for first in self.allowed:
            block = range(first, first + count)
            if first % count == 0 and allowed.issuperset(block):
                yield block

    def _say(self, place: Path, count: int, said: float, waiting: Callable[[str], None]) -> float:
        if time.monotonic() - said < SAY_EVERY_S:
            return said
        waiting(f"waiting for {count} devices of {self.name}; held by {self._holders(place)}")
        return time.monotonic()

    def _holders(self, place: Path) -> str:
        names = []
        for device in self.allowed:
            lock = FileLock(place / f"{device}.lock")
            try:
                with lock.acquire(timeout=0):
                    continue
            except Timeout:
                file = place / f"{device}.holder"
                told = json.loads(file.read_text()) if file.is_file() and file.read_text() else {"holder": "another process", "pid": "?"}
                names.append(f"{told['holder']} (process {told['pid']}, device {device})")
        return ", ".join(names) or "nobody"
