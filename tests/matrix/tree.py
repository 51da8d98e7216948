"""A declaration tree to play with: the checkout's own, copied, with a small warm start, so that the tests hold whatever the real one says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from matrix.loader import ROOT, load
from matrix.resolver import baseline_directory
from matrix.weights import fingerprint

MODEL = "models/qwen3-4b.yaml"
CELLS = "cells/qwen3-4b.yaml"
RECIPE = "recipes/spell-backward.yaml"
CELL = "qwen3-4b.cpu.colocate"
MODES = """slots:
  - name: placement
    required: true
    settings:
      - name: colocate
        summary: shared devices
        config:
          placement: {mode: colocate}
        defaults:
          weights: {transport: ipc}
      - name: non-colocate
        summary: devices of their own
        config:
          placement: {mode: non-colocate}
        defaults:
          weights: {transport: broadcast}
excludes: []
"""


def make_tree(place: Path) -> Path:
    """A loadable tree under `place`/checkout/matrix with the two cells of qwen3-4b and one recipe. Returns its root."""
    root = place / "checkout" / "matrix"
    root.mkdir(parents=True)
    (root / "modes.yaml").write_text(MODES)
    for name in ("tiers.yaml", "science.yaml", "quarantine.yaml", MODEL, "hardware/cpu.yaml", RECIPE, "schema/vime-config.schema.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "schema" / "options", root / "schema" / "options")
    _warm_start(root)
    (root / "cells").mkdir()
    rows = [f"  - id: qwen3-4b.cpu.{mode}\n    recipe: spell-backward\n    tiers: [smoke, nightly]\n" for mode in ("non-colocate", "colocate")]
    (root / CELLS).write_text("cells:\n" + "".join(rows))
    return root


def _warm_start(root: Path) -> None:
    directory = root / "warmstarts" / "play"
    directory.mkdir(parents=True)
    save_file(
        {"model.embed_tokens.weight": np.ones((64, 96), np.float32), "model.norm.weight": np.arange(96, dtype=np.float32)}, directory / "model.safetensors"
    )
    (directory / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    model = root / MODEL
    head = model.read_text().split("  warm_starts:")[0]
    model.write_text(head + f"  warm_starts:\n    spell-backward:\n      directory: play\n      sha256: {fingerprint(directory)}\n")


def record(root: Path, metric: str = "rollout/reward_mean", steps: int = 100) -> Path:
    """A baseline of one made-up run for the tree's science. Returns its directory."""
    matrix = load(root)
    directory = baseline_directory(matrix.cell(CELL), matrix)
    (directory / "seed-0").mkdir(parents=True)
    (directory / "baseline.json").write_text(json.dumps({"runs": [{"seed": 0, "path": "seed-0"}]}))
    lines = [json.dumps({"step": step, "metrics": {metric: step / steps}}) for step in range(steps)]
    (directory / "seed-0" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def edit(root: Path, name: str, old: str, new: str) -> None:
    """Replace text in one file of a tree; the text must be there, once at least."""
    file = root / name
    text = file.read_text()
    assert old in text, f"{old!r} is not in {name}"
    file.write_text(text.replace(old, new, 1))


def line_of(root: Path, name: str, text: str) -> int:
    """The line (from 1) that `text` first stands on."""
    return next(number for number, line in enumerate((root / name).read_text().splitlines(), 1) if text in line)
