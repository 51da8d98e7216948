"""Cells that another trainer runs: the words of its command and environment, with placeholders filled in from the cell's resolved configuration."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matrix.declarations import Framework
from matrix.fragments import lookup
from matrix.layout import devices_needed
from matrix.loader import Declared, DeclaredCell, Matrix
from matrix.problem import MatrixError, Problem

PLACEHOLDER = re.compile(r"\{([a-z0-9_.]+)\}")
KNOWN = ("python", "config", "out", "seed", "cell", "steps", "devices", "model")


def run_values(matrix: Matrix, cell: DeclaredCell, config: Mapping[str, Any], seed: int, out: Path | str, python: str = "python") -> dict[str, Any]:
    """What the placeholders that are no configuration key stand for, of one run whose directory is `out`."""
    steps, devices = cell.recipe.value.judge.planned_steps, devices_needed(config, matrix.vime)
    values = (python, f"{out}/input.yaml", out, seed, str(cell), steps, devices, config["model"]["path"])
    return dict(zip(KNOWN, values, strict=True))


def command(framework: Declared[Framework], values: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """The framework's command. Raises MatrixError, with the place, for a placeholder that stands for nothing."""
    return [_filled(framework, ("command", index), word, values, config) for index, word in enumerate(framework.value.command)]


def environment(framework: Declared[Framework], values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    """What the framework adds to the environment. Raises as `command` does."""
    return {name: _filled(framework, ("environment", name), text, values, config) for name, text in framework.value.environment.items()}


def _filled(framework: Declared[Framework], at: tuple[str | int, ...], text: str, values: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name in values:
            return str(values[name])
        with contextlib.suppress(KeyError):
            held = lookup(config, tuple(name.split(".")))
            if isinstance(held, str | int | float):
                return str(held)
        message = f"{{{name}}} is no single value of the configuration; placeholders are {', '.join(KNOWN)} and its keys"
        raise MatrixError([Problem(framework.where(*at), message)])

    return PLACEHOLDER.sub(value, text)


def framework_problems(cell: DeclaredCell, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Placeholders of the cell's framework that stand for nothing in its configuration."""
    framework = cell.framework
    if framework is None:
        return
    values = dict.fromkeys(KNOWN, "")
    for at, text in _texts(framework.value):
        try:
            _filled(framework, at, text, values, config)
        except MatrixError as error:
            yield from error.problems


def _texts(framework: Framework) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Everything that may hold placeholders, with its place in the file."""
    for index, word in enumerate(framework.command):
        yield ("command", index), word
    for name, text in framework.environment.items():
        yield ("environment", name), text
