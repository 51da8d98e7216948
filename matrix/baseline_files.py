"""The recorded baselines against the declarations: none orphaned, missing, empty, constant or unreadable. What a baseline proves is for `reports` to say."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matrix.canonical import SHORT
from matrix.loader import DeclaredCell, Matrix
from matrix.prerequisites import lacking
from matrix.problem import MatrixError, Problem, Where, shown
from matrix.resolver import science_hash

FILE = "baseline.json"


def baseline_problems(matrix: Matrix) -> Iterator[Problem]:
    """Every fault of `<root>/baselines/`, and every required cell without a baseline."""
    wanted = _by_science(matrix)
    folder = matrix.root / "baselines"
    for directory in sorted(path for path in folder.glob("*") if path.is_dir()):
        cells = wanted.get(directory.name)
        if cells is None:
            yield Problem(
                Where(shown(directory / FILE)), "an orphan: no declared cell learns this any more. Remove it, or restore the recipe it was recorded from"
            )
        else:
            yield from _one(directory, cells)
    for name, cells in wanted.items():
        required = [cell for cell in cells if cell.declared.value.disposition == "required"]
        if required and not (folder / name).is_dir():
            message = f"'{required[0].id}' is required and has no baseline ({shown(folder / name)}): record it with 'python -m e2e baseline {required[0].id}'"
            yield Problem(required[0].declared.where("id"), f"{message}, or declare the cell experimental")


def cell_baseline_problems(matrix: Matrix, cell: DeclaredCell) -> list[Problem]:
    """Faults of the files that the cell's runs would be compared with; empty where they are sound, and where there is no baseline."""
    directory = matrix.root / "baselines" / science_hash(cell, matrix)[:SHORT]
    return list(_one(directory, [cell])) if directory.is_dir() else []


def _by_science(matrix: Matrix) -> dict[str, list[DeclaredCell]]:
    """The cells of each science, by the short hash that names its baseline. Cells whose weights are missing learn nothing yet."""
    found: dict[str, list[DeclaredCell]] = {}
    for cell in matrix.cells.values():
        if lacking(matrix, cell):
            continue
        try:
            found.setdefault(science_hash(cell, matrix)[:SHORT], []).append(cell)
        except (MatrixError, KeyError):  # said by `check` already
            continue
    return found


def _one(directory: Path, cells: list[DeclaredCell]) -> Iterator[Problem]:
    file = directory / FILE
    told = _read_json(file)
    if isinstance(told, Problem):
        yield told
        return
    rule, runs = cells[0].recipe.value.judge, told.get("runs", [])
    if not isinstance(runs, list) or not all(isinstance(entry, dict) and isinstance(entry.get("path"), str) for entry in runs):
        yield Problem(Where(shown(file)), "runs is not a list of {seed, path}: record the baseline again")
        return
    if not runs:
        yield Problem(Where(shown(file)), "holds no run: record it again")
    for entry in runs:
        if (directory / entry["path"]).resolve().parent != directory.resolve():
            yield Problem(Where(shown(file)), f"path {entry['path']!r} is no folder of this baseline: record it again")
            continue
        yield from _run(directory / entry["path"], rule.metric, rule.planned_steps)
    seeds = [entry.get("seed") for entry in runs]
    outside = [seed for seed in seeds if not isinstance(seed, int) or not 0 <= seed < 100]
    if outside or len(set(seeds)) < len(seeds):
        yield Problem(Where(shown(file)), f"seeds {seeds}: a baseline's are 0 to 99, each once")


def _read_json(file: Path) -> dict[str, Any] | Problem:
    where = Where(shown(file))
    if not file.is_file():
        return Problem(where, "is missing: a baseline says where it comes from; record it again")
    if not file.read_bytes().strip():
        return Problem(where, "is empty: record the baseline again")
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        return Problem(where, f"is not JSON ({error}): record the baseline again")
    return told if isinstance(told, dict) else Problem(where, "is not a JSON object: record the baseline again")


def _run(directory: Path, metric: str, planned: int) -> Iterator[Problem]:
    """One run's curve: there, whole, finite, and not the same number over and over."""
    file = directory / "metrics.jsonl"
    if not file.is_file() or not file.read_bytes().strip():
        yield Problem(Where(shown(file)), "is missing or empty: record the baseline again")
        return
    values: dict[int, float] = {}
    steps = 0
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            record = json.loads(line)
            values |= {number: float(record["metrics"][metric])} if metric in record["metrics"] else {}
        except (ValueError, KeyError, TypeError) as error:
            yield Problem(Where(shown(file), number), f"is no record of a step ({type(error).__name__}: {error})")
            return
        steps += 1
    where = Where(shown(file))
    bad = next((number for number, value in values.items() if not math.isfinite(value)), None)
    if bad is not None:
        yield Problem(Where(shown(file), bad), f"{metric} is {values[bad]}: no baseline")
    elif steps != planned:
        yield Problem(where, f"has {steps} steps of {planned} planned")
    elif not values:
        yield Problem(where, f"never holds {metric}, by which the recipe is judged")
    elif len(values) > 1 and len(set(values.values())) == 1:
        yield Problem(where, f"{metric} is {next(iter(values.values()))} at every step: a constant curve is no baseline")
