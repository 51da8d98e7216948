"""Which cells a pytest invocation asks for. Nothing is selected in silence: a name that selects nothing is an error with the nearest names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from e2e.cell_run import Options
from e2e.machine import offer
from matrix.cell_id import key
from matrix.declarations import MARKERS, Hardware
from matrix.loader import DeclaredCell, Matrix
from matrix.problem import SelectionError, nearest

MOST_SEED = 2**31 - 1  # numpy, torch and vLLM all take it
MOST_SEEDS = 1000
SHOWN = 8  # cells that a message names


@dataclass(frozen=True)
class Selection:
    """The cells asked for, and how to run them."""

    matrix: Matrix
    cells: tuple[DeclaredCell, ...]
    options: Options


def select(matrix: Matrix, markers: frozenset[str], tier: str | None, cells: Iterable[str]) -> tuple[DeclaredCell, ...]:
    """Cells of the markers (none: of every platform), and of the tier or with the ids or patterns given.

    Raises SelectionError when anything asked for selects nothing.
    """
    within = markers or frozenset(MARKERS.values())
    patterns = list(cells)
    if not patterns:
        found = matrix.select(tier=tier, markers=within)
        if not found:
            elsewhere = matrix.select(markers=within) or list(matrix.cells.values())
            raise SelectionError(f"no cell is declared for {' or '.join(sorted(within))} in tier '{tier}'; declared are {_shown(elsewhere)}")
        return tuple(found)
    chosen: dict[str, DeclaredCell] = {}
    for pattern in patterns:
        matched = [cell for cell in matrix.cells.values() if cell.marker in within and (tier is None or tier in cell.tiers) and _matches(cell, pattern)]
        if not matched:
            elsewhere = [cell for cell in matrix.cells.values() if _matches(cell, pattern)]
            why = (
                f"; {_shown(elsewhere)} is declared, but not for {' or '.join(sorted(within))}{f' in tier {tier}' if tier else ''}"
                if elsewhere
                else nearest(pattern, matrix.cells)
            )
            raise SelectionError(f"--cell {pattern} selects nothing{why}")
        chosen |= {str(cell): cell for cell in matched}
    return tuple(chosen[name] for name in sorted(chosen))


def select_default(matrix: Matrix, markers: frozenset[str], here: Callable[[Hardware], bool] | None = None) -> tuple[DeclaredCell, ...]:
    """Cells where neither tier nor cell was named: of each marker the cells on hardware that is here, in the first of the tiers that has any. Of a marker none
    of whose hardware is here every cell, because nothing of them will run and all are to be reported. Raises SelectionError where no cell is declared."""
    present = here or (lambda hardware: offer(hardware).lacks is None)
    chosen: dict[str, DeclaredCell] = {}
    for marker in sorted(markers or MARKERS.values()):
        cells = matrix.select(markers={marker})
        kinds = {cell.id.hardware: cell.hardware.value for cell in cells}
        able = {name for name, hardware in kinds.items() if present(hardware)}
        runnable = [cell for cell in cells if cell.id.hardware in able]
        tier = next((tier for tier in matrix.tiers if any(tier in cell.tiers for cell in runnable)), None)
        chosen |= {str(cell): cell for cell in (cells if tier is None else runnable) if tier is None or tier in cell.tiers}
    if not chosen:
        raise SelectionError(f"no cell is declared for {' or '.join(sorted(markers))}; declared are {_shown(matrix.cells.values())}")
    return tuple(chosen[name] for name in sorted(chosen))


def _matches(cell: DeclaredCell, pattern: str) -> bool:
    return fnmatchcase(str(cell), pattern) or pattern == key(cell.id)


def _shown(cells: Iterable[DeclaredCell]) -> str:
    names = [f"{cell} ({'/'.join(cell.tiers)})" for cell in cells]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "") or "none"


def check_candidates(cells: Iterable[DeclaredCell], seeds: tuple[int, ...]) -> None:
    """Raises ValueError for seeds of a baseline: judged beside the runs that they are, they would always pass."""
    for cell in cells:
        first = cell.recipe.value.seeds.candidates_from
        if seeds and min(seeds) < first:
            raise ValueError(f"seed {min(seeds)} of {cell} is a baseline's: candidates take {first} and up (--no-judge makes the run all the same)")


def seeds_of(text: str) -> tuple[int, ...]:
    """`0-19`, `100`, `100,103-105` as seeds in order. Raises ValueError with the form, and for numbers that no run takes."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not part.isascii() or not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise ValueError(f"'{part}' in '{text}' is not a seed or a range: write 100, 100,102 or 0-19")
        if int(last or first) > MOST_SEED or int(last or first) - int(first) >= MOST_SEEDS:
            raise ValueError(f"'{part}' in '{text}': seeds are numbers up to {MOST_SEED}, at most {MOST_SEEDS} at once")
        seeds += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(seeds))
