"""How a cell's declared configuration differs from the one its baseline was recorded with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reports.results import CellResult

if TYPE_CHECKING:
    from matrix.loader import Matrix

MOST = 60  # lines


def differences(matrix: Matrix, results: Sequence[CellResult]) -> dict[str, list[str]]:
    """Cell key -> lines, for cells whose baseline names another declared cell. Cells of one baseline share its reading."""
    recorded: dict[Path, str | None] = {}
    found = {}
    for result in results:
        if result.baseline is None or not result.history:
            continue
        if result.baseline not in recorded:
            recorded[result.baseline] = _cell_of(result.baseline / "baseline.json")
        if lines := _lines(matrix, recorded[result.baseline], result):
            found[result.key] = lines
    return found


def _cell_of(file: Path) -> str | None:
    if not file.is_file():
        return None
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return None
    cell = value.get("cell") if isinstance(value, dict) else None
    return str(cell) if cell else None


def _lines(matrix: Matrix, baseline: str | None, result: CellResult) -> list[str]:
    from matrix.difference import difference
    from matrix.problem import MatrixError

    if baseline is None or result.id not in matrix.cells:
        return []
    if baseline == result.id:
        return (
            [f"the baseline was recorded by this very cell: its configuration then is the declared one, by the science hash {result.baseline.name}"]
            if result.baseline
            else []
        )
    if baseline not in matrix.cells:
        return [f"the baseline was recorded by {baseline}, which the matrix declares no more"]
    try:
        lines = difference(matrix, matrix.cells[baseline], matrix.cells[result.id]).lines()
    except (MatrixError, OSError):
        return []
    lines = [f"baseline recorded by {baseline}; first value: the baseline's", *lines]
    return lines if len(lines) <= MOST else [*lines[:MOST], f"… {len(lines) - MOST} more: python -m matrix diff {baseline} {result.id}"]
