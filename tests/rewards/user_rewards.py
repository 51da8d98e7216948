"""Rewards that misbehave in every way a user's may; imported by the worker processes of the tests."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import time
from typing import Any


def by_command(text: str, label: Any, metadata: dict[str, Any]) -> Any:
    """Do what the answer says; a number is the reward."""
    if text in COMMANDS:
        return COMMANDS[text]()
    return float(text)


def swallow() -> float:
    """A grader that turns every exception of its own into a score."""
    try:
        time.sleep(60)
    except Exception:  # noqa: BLE001
        return 1.0
    return 1.0


def swallow_all() -> float:
    try:
        time.sleep(60)
    except BaseException:  # noqa: BLE001
        return 1.0
    return 1.0


def outside_the_interpreter() -> float:
    """Minutes inside one C call: no Python signal handler runs."""
    return float(sum(itertools.repeat(1, 10**11)))


def raise_value_error() -> float:
    raise ValueError("no such move")


COMMANDS = {
    "raise": raise_value_error,
    "none": lambda: None,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "text": lambda: "1.0",
    "list": lambda: [1.0],
    "sleep": lambda: time.sleep(60),
    "slow": lambda: (time.sleep(0.03), 0.5)[1],
    "slow_pid": lambda: (time.sleep(0.03), float(os.getpid()))[1],
    "swallow": swallow,
    "swallow_all": swallow_all,
    "hang": outside_the_interpreter,
    "exit": lambda: os._exit(7),
    "sys_exit": lambda: exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "pid": lambda: float(os.getpid()),
}


def context_seen(text: str, label: Any, metadata: dict[str, Any], *, finish_reason: str, prompt: str, response_ids: list[int], bonus: float = 0.0) -> float:
    return bonus + (finish_reason == "stop") + 2 * (prompt == "p1") + 4 * (response_ids == [5, 6])


def always_raises(text: str, label: Any, metadata: dict[str, Any]) -> float:
    raise KeyError("answer key lost")


async def asynchronous(text: str, label: Any, metadata: dict[str, Any]) -> float:
    return 1.0


def strict_arguments(text: str, label: Any, metadata: dict[str, Any], *, weight: float) -> float:
    return weight


NOT_A_FUNCTION = 3
