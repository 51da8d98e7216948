"""A fault in a declaration: where it is, what the value is, and the mend. A tree's faults are reported together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path


@dataclass(frozen=True, order=True)
class Where:
    """A place in a declaration. `line` counts from 1; 0 stands for the whole file."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, order=True)
class Problem:
    """One fault; `str()` is the one line a person reads."""

    where: Where
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class MatrixError(Exception):
    """Declarations that cannot be used. `problems` holds every fault of the tree, sorted by place, each once."""

    exit_code = 1

    def __init__(self, problems: Iterable[Problem]):
        self.problems = sorted(set(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class SelectionError(Exception):
    """A name that a person asked for and nothing declares; the message lists the nearest names."""

    exit_code = 2


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """`"; nearest: a, b"`, or `"; known: …"` when nothing is near, or "" when nothing is known."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=count, cutoff=0.6)
    if close:
        return f"; nearest: {', '.join(close)}"
    shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    return f"; known: {shown}" if names else ""


def shown(path: Path) -> str:
    """A path as messages show it: relative to the working directory where that is shorter."""
    resolved = path.resolve()
    here = Path.cwd()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(resolved)
