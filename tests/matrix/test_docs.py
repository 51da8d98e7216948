"""The worked examples of docs/matrix.md, done."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from matrix.checks import check
from matrix.loader import ROOT, load
from matrix.problem import MatrixError
from matrix.resolver import resolve, science_hash
from tests.matrix.tree import CELL, CELLS, record

EXAMPLE = re.compile(r'```yaml \{file=matrix/(?P<file>\S+?)(?P<append> append)?(?: replace="(?P<replace>[^"]+)")?\}\n(?P<text>.*?)```', re.DOTALL)


def examples() -> dict[str, re.Match[str]]:
    return {found["file"]: found for found in EXAMPLE.finditer((ROOT.parent / "docs" / "matrix.md").read_text())}


def apply(root: Path, *names: str) -> None:
    for name in names:
        found = examples()[name]
        file = root / name
        text = found["text"]
        if found["append"]:
            text = file.read_text() + text
        elif found["replace"]:
            assert found["replace"] in file.read_text()
            text = file.read_text().replace(found["replace"], text)
        file.write_text(text)


def test_all_examples_together_are_a_tree_without_a_fault(tree: Path):
    assert set(examples()) == {CELLS, "models/qwen3-8b.yaml", "modes.yaml", "hardware/bigcpu.yaml", "quarantine.yaml"}
    apply(tree, *examples())
    (tree / CELLS).write_text((tree / CELLS).read_text() + "  - {id: qwen3-4b.bigcpu.colocate+eager, recipe: spell-backward, tiers: [nightly]}\n")
    record(tree)
    matrix = load(tree)
    assert check(matrix) == []
    assert resolve("qwen3-4b.cpu.non-colocate@dp2", 100, matrix)["parallel"] == {"data": 2}
    assert resolve("qwen3-4b.bigcpu.colocate+eager", 100, matrix)["vllm"] == {"enforce_eager": True}
    assert {science_hash(cell, matrix) for cell in matrix.cells} == {science_hash(CELL, matrix)}
    assert matrix.cell(CELL).quarantined is not None


def test_the_new_model_s_cells_ask_for_its_warm_start(tree: Path):
    apply(tree, "models/qwen3-8b.yaml")
    (tree / "cells/qwen3-8b.yaml").write_text("cells:\n  - {id: qwen3-8b.cpu.colocate, recipe: spell-backward, tiers: [nightly]}\n")
    with pytest.raises(MatrixError, match="the twin has no warm start 'spell-backward'"):
        resolve("qwen3-8b.cpu.colocate", 100, load(tree))
