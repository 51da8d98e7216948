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


def without_memory(root: Path) -> None:
    """What other work on this machine takes must not make a test wait."""
    file = root / "hardware" / "cpu.yaml"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("device_memory_gib:")))


def short_tree(place: Path) -> Path:
    """A declaration tree whose recipe has 40 steps and whose hardware has limits that a busy machine keeps."""
    root = make_tree(place)
    edit(root, RECIPE, "planned_steps: 100", "planned_steps: 40")
    edit(root, RECIPE, "    steps: 100", "    steps: 40")
    edit(root, RECIPE, "last: 25}", "last: 15}")
    without_memory(root)
    edit(root, "hardware/cpu.yaml", "start_s: 240", "start_s: 30")
    edit(root, "hardware/cpu.yaml", "stall_s: 120", "stall_s: 15")
    edit(root, "hardware/cpu.yaml", "wall_s: 1800", "wall_s: 60")
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return short_tree(tmp_path)


NPU_CELL = "qwen3-4b.a2.colocate"
NPU = """
name: a2
title: Atlas 800T A2
platform: npu
devices_per_node: 8
device_names: [910B]
device_memory_gib: 64.0
visible_devices: ASCEND_RT_VISIBLE_DEVICES
ray_resource: NPU
buildkite: {queue: a2, classes: [2, 4, 8]}
image: {name: vime-a2, digest: unbuilt}
contiguous: true
twins: true
versions: {vllm: 0.23.0}
environment: {HCCL_CONNECT_TIMEOUT: "600"}
limits: {start_s: 30, stall_s: 15, wall_s: 60}
config: {platform: npu}
"""


@pytest.fixture
def npu_tree(tree: Path) -> Path:
    """The tree with a machine that is not here: nightly cells on eight NPUs, one of two nodes."""
    (tree / "hardware" / "a2.yaml").write_text(NPU)
    rows = [(NPU_CELL, 8, 8), ("qwen3-4b.a2.non-colocate", 4, 1), ("qwen3-4b.a2.colocate@two-nodes", 16, 16)]
    cells = [
        f"  - id: {name}\n    recipe: spell-backward\n    tiers: [nightly]\n    config: {{parallel: {{data: {ranks}}}, rollout: {{engines: {engines}}}}}\n"
        for name, ranks, engines in rows
    ]
    (tree / "cells" / "npu.yaml").write_text("cells:\n" + "".join(cells))
    return tree


@pytest.fixture
def matrix(tree: Path) -> Matrix:
    return load(tree)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(root=tmp_path / "results", command=FAKE, lease_directory=tmp_path / "leases")


@pytest.fixture
def behave(tmp_path: Path) -> Callable[..., None]:
    """`behave(seed_100="crash at 3")`: how the fake training behaves, by seed; `behave({"<cell key>/seed-100": …})` of one cell."""

    def write(by_cell: dict[str, str] | None = None, **behaviour: str) -> None:
        root = tmp_path / "results"
        root.mkdir(exist_ok=True)
        (root / "behaviour.json").write_text(json.dumps({name.replace("_", "-"): text for name, text in behaviour.items()} | (by_cell or {})))

    return write
