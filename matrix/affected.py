"""Which cells a change can affect, and why. The map from paths to cells is data (`selection.yaml`); a path that no area claims selects the smoke tier."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from matrix.hardware_types import Name, Platform, Text
from matrix.loader import Declared, DeclaredCell, Matrix
from matrix.problem import Problem, SelectionError, nearest
from matrix.rule import Strict

FILE = "selection.yaml"
UNKNOWN = "no area of selection.yaml claims it"


class Area(Strict):
    """Paths of one concern and the cells they can break: those that match every filter given. The first area that holds a path decides.

    A pattern's `**` stands for any folders, `*` for a part of a name, `{model}`, `{hardware}`, `{recipe}` and `{cells}` for a name that the cells are then
    selected by.
    """

    name: Text
    paths: Annotated[list[Text], Field(min_length=1)]
    because: Text
    none: bool = False  # selects no cell, and `because` says why none applies
    tier: Name | None = None
    families: list[Name] = []
    platforms: list[Platform] = []
    settings: list[Name] = []  # cells whose mode holds one of them
    tags: list[Name] = []

    @model_validator(mode="after")
    def _none_is_none(self) -> Self:
        if self.none and (self.tier or self.families or self.platforms or self.settings or self.tags):
            raise ValueError("an area that selects none has no filter: remove one of the two")
        return self


class Selection(Strict):
    unknown_tier: Name  # what a path without an area selects
    areas: Annotated[list[Area], Field(min_length=1)]


@dataclass(frozen=True)
class Affected:
    """The cells with the reasons for each, and what was said of the paths that select none."""

    reasons: dict[str, tuple[str, ...]]
    none: dict[str, str]  # path -> why it selects no cell
    unknown: tuple[str, ...]

    def lines(self) -> list[str]:
        out = [f"{cell}: {'; '.join(reasons)}" for cell, reasons in sorted(self.reasons.items())]
        out += [f"{path} selects none: {why}" for path, why in sorted(self.none.items())]
        return out or ["nothing changed: no cell is selected"]


def affected(matrix: Matrix, paths: Iterable[str]) -> Affected:
    """The cells that changed paths (relative to the checkout) can break. Raises SelectionError where the tree has no selection.yaml."""
    selection = read_selection(matrix)
    reasons: dict[str, list[str]] = {}
    none: dict[str, str] = {}
    unknown: list[str] = []
    for path in sorted(set(paths)):
        area, names = _area_of(selection.value, path)
        if area is None:
            unknown.append(path)
            cells, why = matrix.select(tier=selection.value.unknown_tier), f"{path}: {UNKNOWN}, so the {selection.value.unknown_tier} tier runs"
        else:
            cells, why = [cell for cell in matrix.cells.values() if _matches(matrix, area, names, cell)], f"{path} ({area.name}): {area.because}"
        if not cells:
            none[path] = area.because if area else UNKNOWN
        for cell in cells:
            reasons.setdefault(str(cell), []).append(why)
    return Affected({cell: tuple(found) for cell, found in reasons.items()}, none, tuple(unknown))


def read_selection(matrix: Matrix) -> Declared[Selection]:
    if matrix.selection is None:
        raise SelectionError(f"{matrix.root / FILE} is missing: it says which paths can break which cells")
    return matrix.selection


def _area_of(selection: Selection, path: str) -> tuple[Area | None, dict[str, str]]:
    for area in selection.areas:
        for pattern in area.paths:
            found = compiled(pattern).fullmatch(path)
            if found:
                return area, found.groupdict()
    return None, {}


_compiled: dict[str, re.Pattern[str]] = {}


def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of paths as a regular expression."""
    if pattern not in _compiled:
        parts = re.split(r"(\*\*/?|\*|\{[a-z]+\})", pattern)
        text = "".join(_part(part) for part in parts)
        _compiled[pattern] = re.compile(text)
    return _compiled[pattern]


def _part(part: str) -> str:
    if part.startswith("**"):
        return "(?:.*/)?" if part.endswith("/") else ".*"
    if part == "*":
        return "[^/]*"
    return f"(?P<{part[1:-1]}>[^/]+)" if part.startswith("{") else re.escape(part)


def _matches(matrix: Matrix, area: Area, names: dict[str, str], cell: DeclaredCell) -> bool:
    if area.none:
        return False
    own = {"model": cell.id.model, "hardware": cell.id.hardware, "recipe": cell.recipe.value.name, "cells": Path(cell.declared.document.file).stem}
    return (
        all(own[name] == value for name, value in names.items())
        and (area.tier is None or area.tier in cell.tiers)
        and (not area.families or cell.model.value.family in area.families)
        and (not area.platforms or cell.hardware.value.platform in area.platforms)
        and (not area.settings or bool(set(area.settings) & set(cell.id.settings)))
        and (not area.tags or bool(set(area.tags) & set(cell.declared.value.tags)))
    )


def changed_paths(checkout: Path, revision: str) -> list[str]:
    """Paths that differ between the point where HEAD left `revision` and the working tree, new files included. Raises SelectionError with git's words."""
    base = _git(checkout, "merge-base", revision, "HEAD").strip()
    changed = _git(checkout, "diff", "--name-only", "--no-renames", "-z", base).split("\0")
    new = _git(checkout, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    return sorted({path for path in (*changed, *new) if path})


def _git(checkout: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SelectionError(f"git {' '.join(arguments)}: {error}; install git, or name the changed paths with 'affected --path'") from None
    if "not a git repository" in done.stderr:
        raise SelectionError(f"{checkout} is no git repository: name the changed paths with 'python -m matrix affected --path PATH'")
    if done.returncode:
        raise SelectionError(f"git {' '.join(arguments)}: {done.stderr.strip() or 'failed'}; is the revision fetched? (git fetch --unshallow)")
    return done.stdout


def selection_problems(matrix: Matrix) -> Iterator[Problem]:
    """Names in selection.yaml that nothing declares."""
    if matrix.selection is None:
        return
    value = matrix.selection.value
    families = {model.value.family for model in matrix.models.values()}
    if value.unknown_tier not in matrix.tiers:
        yield Problem(matrix.selection.where("unknown_tier"), f"no tier '{value.unknown_tier}'{nearest(value.unknown_tier, matrix.tiers)}")
    for index, area in enumerate(value.areas):
        vocabularies = (("families", area.families, families), ("settings", area.settings, matrix.modes.settings), ("tags", area.tags, matrix.tags))
        for field, names, known in (*vocabularies, ("tier", [area.tier] if area.tier else [], matrix.tiers)):
            for name in names:
                if name not in known:
                    yield Problem(matrix.selection.where("areas", index, field), f"{field} names '{name}', which nothing declares{nearest(name, known)}")
        if area.name in {other.name for other in value.areas[:index]}:
            yield Problem(matrix.selection.where("areas", index, "name"), f"there are two areas '{area.name}': join them")
