"""What must hold: models × hardware × modes × recipes, declared in YAML, loaded strictly, resolved to vime configurations. Imports neither vime nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix.cell_id import CellId, key, parse
    from matrix.checks import check
    from matrix.loader import DeclaredCell, Matrix, load
    from matrix.problem import MatrixError, Problem, SelectionError
    from matrix.resolver import baseline_directory, config_hash, labels, resolve, science_hash

_HOME = {
    "CellId": "cell_id",
    "key": "cell_id",
    "parse": "cell_id",
    "check": "checks",
    "DeclaredCell": "loader",
    "Matrix": "loader",
    "load": "loader",
    "MatrixError": "problem",
    "Problem": "problem",
    "SelectionError": "problem",
    "baseline_directory": "resolver",
    "config_hash": "resolver",
    "labels": "resolver",
    "resolve": "resolver",
    "science_hash": "resolver",
}
__all__ = [
    "CellId",
    "DeclaredCell",
    "Matrix",
    "MatrixError",
    "Problem",
    "SelectionError",
    "baseline_directory",
    "check",
    "config_hash",
    "key",
    "labels",
    "load",
    "parse",
    "resolve",
    "science_hash",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `import matrix` alone costs nothing."""
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'matrix' has no attribute '{name}'")
    return getattr(import_module(f"matrix.{_HOME[name]}"), name)
