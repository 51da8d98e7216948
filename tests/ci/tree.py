"""A small declaration tree with a cell on every kind of hardware, made of the checkout's own files."""

from __future__ import annotations

import shutil
from pathlib import Path

from matrix.loader import ROOT

IMAGES = {name: f"sha256:{digit * 64}" for name, digit in (("vime-npu-a2", "2"), ("vime-npu-a3", "3"), ("vime-npu-a5", "5"), ("vime-cuda", "c"))}
CELLS = {
    "qwen3-4b.cpu.colocate": "smoke, pr, nightly",
    "qwen3-4b.cpu.non-colocate": "smoke, pr, nightly",
    "qwen3-4b.cpu.colocate@learn": "nightly",
    "qwen3-4b.a2.colocate": "pr, nightly",
    "qwen3-4b.a3.colocate": "pr, nightly",
    "qwen3-4b.a3.non-colocate": "nightly",
    "qwen3-4b.a3.non-colocate+tq": "nightly",
    "qwen3-4b.h100.colocate": "nightly",
    "qwen3-4b.h200.non-colocate": "weekly",
}
KEPT = ("models/qwen3-4b.yaml", "modes.yaml", "tiers.yaml", "science.yaml", "tags.yaml", "versions.yaml", "quarantine.yaml", "selection.yaml")
FOLDERS = ("hardware", "recipes", "schema", "warmstarts")


def example_tree(place: Path) -> Path:
    """The tree's root, under `place`/checkout. Cells are copied from the checkout's own, with the tiers above."""
    import yaml

    root = place / "checkout" / "matrix"
    (root / "models").mkdir(parents=True)
    (root / "cells").mkdir()
    for name in KEPT:
        shutil.copy(ROOT / name, root / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, root / name)
    declared = {cell["id"]: cell for path in sorted((ROOT / "cells").glob("*.yaml")) for cell in yaml.safe_load(path.read_text())["cells"]}
    cells = [{**declared[cell], "tiers": tiers.split(", ")} for cell, tiers in CELLS.items()]
    (root / "cells" / "qwen3-4b.yaml").write_text(yaml.safe_dump({"cells": cells}, sort_keys=False))
    return root
