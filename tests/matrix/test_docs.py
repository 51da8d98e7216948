"""The worked examples of docs/matrix.md, done to a copy of the checkout's own declarations; and the output that it shows, compared."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from matrix.checks import check
from matrix.cli import app
from matrix.loader import ROOT, load
from matrix.plan import Planner
from matrix.problem import MatrixError
from matrix.resolver import resolve, science_hash
from tests.matrix.tree import CELL, CELLS

TEXT = (ROOT.parent / "docs" / "matrix.md").read_text()
EXAMPLE = re.compile(r'```yaml \{file=matrix/(?P<file>\S+?)(?P<append> append)?(?: replace="(?P<replace>[^"]+)")?\}\n(?P<text>.*?)```', re.DOTALL)
RUN = re.compile(r"```console \{run\}\n\$ python -m matrix (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)
EXAMPLES = {found["file"]: found for found in EXAMPLE.finditer(TEXT)}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The checkout's declarations, to be changed."""
    root = tmp_path / "checkout" / "matrix"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return root


def apply(root: Path, *names: str) -> None:
    for name in names:
        found = EXAMPLES[name]
        file = root / name
        text = found["text"]
        if found["append"]:
            text = file.read_text() + text
        elif found["replace"]:
            assert file.read_text().count(found["replace"]) == 1
            text = file.read_text().replace(found["replace"] + "\n", text)
        else:
            assert not file.exists() or name == "quarantine.yaml"
        file.write_text(text)


def test_there_is_an_example_of_everything_one_adds():
    assert set(EXAMPLES) == {
        "models/qwen3-14b.yaml",
        "hardware/h20.yaml",
        "modes.yaml",
        "recipes/gsm8k-smoke.yaml",
        "cells/qwen3-14b.yaml",
        CELLS,
        "quarantine.yaml",
    }


def test_all_examples_together_leave_the_checkout_without_a_fault(copied: Path):
    apply(copied, *EXAMPLES)
    matrix = load(copied)
    assert check(matrix) == []
    assert resolve("qwen3-4b.cpu.non-colocate@dp2", 100, matrix)["parallel"] == {"data": 2}
    assert science_hash("qwen3-4b.cpu.non-colocate@dp2", matrix) == science_hash(CELL, matrix) == science_hash(CELL, load(ROOT))
    config = resolve("qwen3-14b.h20.non-colocate+fp8-cache", 100, matrix)
    assert config["vllm"] == {"gpu_memory_utilization": 0.85, "kv_cache_dtype": "fp8"}
    assert matrix.cell(CELL).quarantined is not None
    planned = Planner(matrix).cell(matrix.cell("qwen3-14b.h20.non-colocate"))
    assert planned.trainer is not None
    assert 60 < planned.trainer.total / 2**30 < 91.6


def test_the_new_model_s_cpu_cell_asks_for_its_warm_start(copied: Path):
    apply(copied, *EXAMPLES)
    with pytest.raises(MatrixError, match="the twin has no warm start 'spell-backward'"):
        resolve("qwen3-14b.cpu.colocate", 100, load(copied))


def test_the_new_mode_is_excluded_where_it_says(copied: Path):
    apply(copied, *EXAMPLES)
    (copied / "cells/more.yaml").write_text("cells:\n  - {id: qwen3-4b.cpu.colocate+fp8-cache, recipe: spell-backward, tiers: [nightly]}\n")
    with pytest.raises(MatrixError, match="fp8-cache is excluded for cpu and a2 and a3 and a3-superpod"):
        load(copied)


@pytest.mark.parametrize("found", list(RUN.finditer(TEXT)), ids=lambda found: found["command"])
def test_the_output_shown_is_the_output(found: re.Match[str]):
    done = CliRunner().invoke(app, found["command"].split())
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.output == found["output"]


def test_the_refusal_quoted_is_the_refusal(copied: Path):
    """The paragraph about memory quotes what the planner says of this cell without offloading."""
    file = copied / "cells/qwen3-30b-a3b.yaml"
    offload = "optimizer: {optimizer_cpu_offload: true, optimizer_offload_fraction: 1.0, use_precision_aware_optimizer: true}, "
    file.write_text(file.read_text().replace(offload, ""))
    matrix = load(copied)
    (fault,) = Planner(matrix).cell(matrix.cell("qwen3-30b-a3b.a3.colocate")).faults
    quoted = " ".join(line.removeprefix("> ") for line in TEXT.splitlines() if line.startswith("> "))
    assert str(fault).endswith(quoted)
