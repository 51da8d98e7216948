from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cell_run import Options
from matrix.loader import Matrix, load
from tests.matrix.tree import RECIPE, edit, make_tree

FAKE = (sys.executable, str(Path(__file__).with_name("fake_train.py")))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A declaration tree whose recipe has 40 steps and whose hardware has limits of a few seconds."""
    root = make_tree(tmp_path)
    edit(root, RECIPE, "planned_steps: 100", "planned_steps: 40")
    edit(root, RECIPE, "    steps: 100", "    steps: 40")
    edit(root, RECIPE, "last: 25}", "last: 15}")
    edit(root, "hardware/cpu.yaml", "start_s: 240", "start_s: 3")
    edit(root, "hardware/cpu.yaml", "stall_s: 120", "stall_s: 1.5")
    edit(root, "hardware/cpu.yaml", "wall_s: 1800", "wall_s: 20")
    return root


@pytest.fixture
def matrix(tree: Path) -> Matrix:
    return load(tree)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(root=tmp_path / "results", command=FAKE, lease_directory=tmp_path / "leases")


@pytest.fixture
def behave(tmp_path: Path) -> Callable[..., None]:
    """`behave(seed_100="crash at 3")`: how the fake training behaves, by seed."""

    def write(**behaviour: str) -> None:
        root = tmp_path / "results"
        root.mkdir(exist_ok=True)
        (root / "behaviour.json").write_text(json.dumps({name.replace("_", "-"): text for name, text in behaviour.items()}))

    return write
