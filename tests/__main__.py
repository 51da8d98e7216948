"""Runs the tests in two parts: the light ones on two workers, then the heavy ones one after the other, which need the machine for themselves.

python -m tests                 what `make test` runs; arguments go to pytest, in both parts
python -m tests --slow -x       the slow ones too: `make test-all`
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.reports import browser

WORKERS = ("-n", "2")
PARTS = {"light": "not heavy", "heavy": "heavy"}  # every test is in exactly one
SLOW = "--slow"


@dataclass(frozen=True)
class Part:
    """One pytest run."""

    name: str
    code: int
    seconds: float

    def __str__(self) -> str:
        said = {0: "passed", int(pytest.ExitCode.TESTS_FAILED): "FAILED", int(pytest.ExitCode.NO_TESTS_COLLECTED): "no test selected"}
        return f"{self.name} tests: {said.get(self.code, f'pytest ended with exit code {self.code}')} ({self.seconds:.0f} s)"


def commands(arguments: Sequence[str]) -> dict[str, list[str]]:
    """pytest's arguments, by part. A `-m` among `arguments` narrows both."""
    slow, rest = SLOW in arguments, [word for word in arguments if word != SLOW]
    rest, chosen = without_marks(rest)
    wanted = [*chosen, *([] if slow else ["not slow"])]
    return {name: [*(WORKERS if name == "light" else ()), "-m", " and ".join(f"({marks})" for marks in (part, *wanted)), *rest] for name, part in PARTS.items()}


def without_marks(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without `-m EXPRESSION`, and the expressions: pytest would take the last one alone."""
    rest, marks, words = [], [], iter(arguments)
    for word in words:
        if word == "-m":
            marks.append(next(words, ""))
        elif word.startswith("-m") and not word.startswith("--"):
            marks.append(word[2:].removeprefix("="))
        else:
            rest.append(word)
    return rest, marks


def verdict(parts: Sequence[Part]) -> int:
    """0 when all that ran passed and something ran; else the exit code of the first part that did not."""
    nothing = int(pytest.ExitCode.NO_TESTS_COLLECTED)
    failed = [part.code for part in parts if part.code not in (0, nothing)]
    return failed[0] if failed else 0 if any(part.code == 0 for part in parts) else nothing


def main(arguments: Sequence[str]) -> int:
    parts: list[Part] = []
    for name, command in commands(arguments).items():
        begin = time.monotonic()
        code = subprocess.run([sys.executable, "-m", "pytest", *command]).returncode
        parts.append(Part(name, code, time.monotonic() - begin))
        if code == int(pytest.ExitCode.INTERRUPTED):
            break
    if browser.find() is None:
        print(f"\n{browser.MISSING}", flush=True)
    print("\n" + "; ".join(map(str, parts)), flush=True)
    return verdict(parts)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
