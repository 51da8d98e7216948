"""The `vime` command inside pytest's own process, for what ends before anything is started."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vime import cli


@dataclass(frozen=True)
class Done:
    """How a command ended. An exception that `vime` does not turn into a message leaves the test instead."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The error message; asserts that there is one, on stderr."""
        assert self.err.startswith("vime: error: "), self.err
        return self.err.removeprefix("vime: error: ").rstrip("\n")


class Command:
    """`vime` as the `command` fixture gives it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
        self.monkeypatch, self.capfd = monkeypatch, capfd

    def __call__(self, *arguments: str | Path) -> Done:
        self.monkeypatch.setattr(sys, "argv", ["vime", *map(str, arguments)])
        self.capfd.readouterr()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            cli.main()
        except SystemExit as end:
            code: Any = end.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        captured = self.capfd.readouterr()
        return Done(int(code or 0), captured.out, captured.err)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def overrides(**changes: Any) -> Sequence[str]:
    """`--set` arguments (`__` stands for the dot), values as YAML reads them."""
    return [part for key, value in changes.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]
