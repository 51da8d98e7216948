"""Visible devices: what `CUDA_VISIBLE_DEVICES` or `ASCEND_RT_VISIBLE_DEVICES` says, and which physical device a process' n-th one is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from vime.errors import UserError


@dataclass(frozen=True)
class VisibleDevices:
    """The physical devices that a process may use, in its own order: `physical[n]` is the process' device n.

    An id is a number as text, or on CUDA also a device's UUID (`GPU-…`, `MIG-…`).
    """

    variable: str
    physical: tuple[str, ...]

    @classmethod
    def read(cls, variable: str, environment: Mapping[str, str], count: int) -> Self:
        """What `variable` allows of `count` devices; all of them, numbered from 0, where it is not set. Raises UserError, naming variable and value."""
        if variable not in environment:
            return cls(variable, tuple(map(str, range(count))))
        return cls(variable, parse(variable, environment[variable]))

    def __len__(self) -> int:
        return len(self.physical)

    @property
    def value(self) -> str:
        """The variable's text for exactly these devices."""
        return ",".join(self.physical)

    def of(self, local: int) -> str:
        """The physical id of the process' device `local`. Raises UserError for one it has not."""
        if not 0 <= local < len(self.physical):
            raise UserError(f"device {local} is not visible: {self.variable}={self.value} has {len(self.physical)} device(s), numbered from 0")
        return self.physical[local]

    def local(self, physical: str) -> int:
        """The process' number of a physical device. Raises UserError for one that is not visible."""
        if physical not in self.physical:
            raise UserError(f"device {physical} is not visible: {self.variable}={self.value}")
        return self.physical.index(physical)

    def subset(self, locals_: Iterable[int]) -> Self:
        """Only those of the process' devices: what a child process may be given. Never more than this process has."""
        return type(self)(self.variable, tuple(self.of(local) for local in locals_))


def parse(variable: str, text: str) -> tuple[str, ...]:
    """The ids in a visible-devices variable. Numbers lose leading zeros and blanks; an empty text means no device.

    Raises UserError for an id that is neither a number nor a UUID, for a negative one (the drivers stop reading there, in silence), and for a repeated one.
    """
    out: list[str] = []
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        if not (number(part) or part.startswith(("GPU-", "MIG-"))):
            what = "is empty" if not part else f"{part!r} is neither a device number nor a UUID"
            raise UserError(f"{variable}={text!r}: an entry {what}: give numbers with commas, for example {variable}=0,1,2,3")
        name = str(int(part)) if number(part) else part
        if name in out:
            raise UserError(f"{variable}={text!r}: device {name} is named twice")
        out.append(name)
    return tuple(out)


def number(text: str) -> bool:
    """Whether it is a device number; `²` and other scripts' digits are not, though `str.isdigit` says so."""
    return text.isascii() and text.isdigit()


def in_order(ids: Iterable[str]) -> list[str]:
    """Ids sorted as a person counts: 2 before 10; UUIDs after numbers, by text."""
    return sorted(ids, key=lambda name: (0, int(name), "") if number(name) else (1, 0, name))
