"""The benchmark of large matrices still runs, and plans what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def matrix_scale(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import matrix_scale

    return matrix_scale


def test_a_tree_of_many_cells_is_written_loaded_and_planned(matrix_scale: Any, tmp_path: Path) -> None:
    matrix_scale.write_tree(tmp_path / "tree", 150)
    seconds = matrix_scale.measure(tmp_path / "tree")
    assert set(seconds) == {"load", "plan", "matrix plan --json"}


def test_five_thousand_cells_take_less_than_two_seconds_of_one_core(matrix_scale: Any, tmp_path: Path) -> None:
    """Seconds of this process, not of the clock: what else the machine does is nobody's fault here. 1.5 on the machine of docs/performance.md."""
    import time

    from matrix.loader import load
    from matrix.plan import Planner

    matrix_scale.write_tree(tmp_path / "tree", 5000)
    matrix = load(tmp_path / "tree")
    planner = Planner(matrix)
    begin = time.process_time()
    plan = planner.plan(matrix.cells.values())
    assert len(plan.cells) == 5000
    assert time.process_time() - begin < 2.0
