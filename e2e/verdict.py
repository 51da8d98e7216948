"""The verdict of a cell: what `reports` says of its runs, or why there is nothing to judge. Kept as <root>/<cell key>/verdicts/<time>.json."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.runner import write_json
from matrix.loader import DeclaredCell, Matrix
from matrix.outcome import Outcome


@dataclass(frozen=True)
class CellVerdict:
    """`outcome` is None when the runs were made and not judged."""

    cell: str
    outcome: Outcome | None
    reasons: tuple[str, ...]
    seeds: tuple[int, ...]
    path: str = ""
    seconds: float = 0.0


JudgeCell = Callable[[Matrix, DeclaredCell, Path, tuple[int, ...]], CellVerdict]


def unjudged(cell: DeclaredCell, root: Path, outcome: Outcome, reason: str, seeds: tuple[int, ...] = (), *, write: bool = True) -> CellVerdict:
    """The verdict of a cell whose runs cannot be judged: one did not finish, or there is none."""
    path = ""
    if write:
        path = str(_file(root, cell))
        runs = [{"path": f"seed-{seed}", "seed": seed} for seed in seeds]
        write_json(
            Path(path),
            {"cell": str(cell), "outcome": str(outcome), "reasons": [reason], "runs": runs, "disposition": str(cell.disposition), "time": time.time()},
        )
    return CellVerdict(str(cell), outcome, (reason,), seeds, path)


def _file(root: Path, cell: DeclaredCell) -> Path:
    directory = root / cell.key / "verdicts"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 1_000_000_000:09d}Z.json"
