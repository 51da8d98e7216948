"""In what two cells differ: the axes under test, what follows from them, and everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matrix.fragments import Fragment, Key, leaves
from matrix.loader import DeclaredCell, Matrix
from matrix.resolver import compose_cell, science

ABSENT = "not set"
AXES = ("model", "hardware", "mode", "variant")


@dataclass(frozen=True)
class Change:
    """One value that differs. `source` is where the values come from: an axis, `recipe` or `layout` (the cell's own config)."""

    key: str
    first: Any
    second: Any
    source: str

    def __str__(self) -> str:
        return f"{self.key}: {self.first} → {self.second} ({self.source})"


@dataclass(frozen=True)
class Difference:
    """What a comparison of two cells would compare. `along` differs because an axis does; `beside` differs although no axis asks for it."""

    axes: tuple[str, ...]
    along: tuple[Change, ...]
    beside: tuple[Change, ...]
    same_science: bool

    def lines(self) -> list[str]:
        out = [f"axes that differ: {', '.join(self.axes) or 'none'}", f"same science: {'yes' if self.same_science else 'no, their curves are not comparable'}"]
        for title, changes in (("differs with them", self.along), ("differs beside them", self.beside)):
            out += [f"{title}:", *(f"  {change}" for change in changes)] if changes else []
        if len(self.axes) > 1:
            out.append(f"more than one axis differs ({', '.join(self.axes)}): a difference between their curves has no single cause")
        return out

    @property
    def single(self) -> bool:
        """Whether one axis differs, and nothing beside it."""
        return len(self.axes) <= 1 and not self.beside


def difference(matrix: Matrix, first: DeclaredCell, second: DeclaredCell) -> Difference:
    """Compare two declared cells. Raises as `compose_cell` does not, and MatrixError where a science cannot be taken."""
    axes = tuple(axis for axis in AXES if getattr(first.id, axis) != getattr(second.id, axis))
    one, other = _values(matrix, first), _values(matrix, second)
    changes = []
    for key in sorted({*one, *other}):
        value, source = one.get(key, (ABSENT, ""))
        new, new_source = other.get(key, (ABSENT, ""))
        if value != new:
            changes.append(Change(".".join(key), value, new, source or new_source))
    along = tuple(change for change in changes if change.source in axes)
    beside = tuple(change for change in changes if change.source not in axes)
    return Difference(axes, along, beside, _science(matrix, first) == _science(matrix, second))


def _values(matrix: Matrix, cell: DeclaredCell) -> dict[Key, tuple[Any, str]]:
    """Every value of the configuration and every declared version, with its source. The cell's name says nothing and is left out."""
    composed = dict(leaves(compose_cell(matrix, cell).values))
    composed.pop(("name",), None)
    sources = {key: source for source, fragment in _fragments(matrix, cell) for key, _ in leaves(fragment.values)}
    found = {key: (value, sources.get(key, "model" if key[0] == "model" else "recipe")) for key, value in composed.items()}
    found |= {("versions", name): (version, "hardware") for name, version in cell.hardware.value.versions.items()}
    found |= {("environment", name): (value, "hardware") for name, value in cell.hardware.value.environment.items()}
    found["recipe",] = (cell.recipe.value.name, "recipe")
    return found


def _fragments(matrix: Matrix, cell: DeclaredCell) -> list[tuple[str, Fragment]]:
    hardware = cell.hardware.value
    return [
        ("recipe", Fragment(cell.recipe.value.config)),
        ("hardware", Fragment(hardware.config)),
        *(("mode", fragment) for fragment in matrix.modes.fragments(cell.id.settings)),
        *(("mode", Fragment(hardware.settings[name])) for name in cell.id.settings if name in hardware.settings),
        ("layout", Fragment(cell.declared.value.config)),
    ]


def _science(matrix: Matrix, cell: DeclaredCell) -> Any:
    return science(matrix, cell)
