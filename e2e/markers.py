"""What a `-m` expression says about the matrix. Light: read in every pytest session of the checkout."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from difflib import get_close_matches

MARKERS = {
    "cpu_e2e": "a cell of the CPU matrix, end to end with a verdict",
    "gpu_e2e": "a cell that needs NVIDIA devices",
    "npu_e2e": "a cell that needs Ascend devices",
}


def wanted_markers(expression: str) -> frozenset[str]:
    """The e2e markers that a `-m` expression asks for: named in it, and true for an item that carries this marker alone."""
    try:
        tree = ast.parse(expression.strip() or "False", mode="eval")
    except SyntaxError:
        return frozenset()  # pytest itself explains what is wrong with it
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return frozenset(marker for marker in MARKERS if marker in named and _true_for(tree.body, marker))


def _true_for(node: ast.expr, marker: str) -> bool:
    if isinstance(node, ast.BoolOp):
        parts = [_true_for(value, marker) for value in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _true_for(node.operand, marker)
    return isinstance(node, ast.Name) and node.id == marker


def mistyped_markers(expression: str, registered: Iterable[str]) -> str | None:
    """A message when a `-m` expression holds a word that is no registered marker and looks like one of the matrix's: it would select nothing, or too little."""
    try:
        tree = ast.parse(expression.strip() or "False", mode="eval")
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in set(registered) and _looks_like_ours(node.id):
            return f"-m {expression}: no marker '{node.id}'; nearest: {', '.join(get_close_matches(node.id.lower(), MARKERS, cutoff=0))}"
    return None


def _looks_like_ours(word: str) -> bool:
    return word.endswith(("e2e", "_e2", "2e")) or bool(get_close_matches(word.lower(), MARKERS, cutoff=0.8))
