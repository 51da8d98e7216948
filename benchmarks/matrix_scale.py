"""What a large matrix costs: `python benchmarks/matrix_scale.py [CELLS]` writes a tree of so many cells, each with its own layout, loads it and plans it.

The cells are the checkout's own with ever new variants and micro-batch sizes, so that nothing is planned once and remembered.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def write_tree(root: Path, count: int) -> None:
    """A copy of the checkout's declarations under `root`, with `count` cells."""
    sys.path.insert(0, str(CHECKOUT))
    from matrix.loader import load

    source = CHECKOUT / "matrix"
    root.mkdir(parents=True, exist_ok=True)
    for name in ("models", "hardware", "recipes", "frameworks", "schema", "warmstarts"):
        if (source / name).is_dir():
            shutil.copytree(source / name, root / name)
    for file in source.glob("*.yaml"):
        shutil.copy(file, root / file.name)
    cells = [cell for cell in load().cells.values() if not cell.hardware.value.twins]
    (root / "cells").mkdir()
    lines = ["cells:"]
    for number in range(count):
        cell = cells[number % len(cells)]
        config = dict(cell.declared.value.config)
        config["train"] = {**config.get("train", {}), "max_tokens_per_microbatch": config["train"]["max_tokens_per_microbatch"] + number}
        stem = str(cell.id).split("@")[0]
        lines += [f"  - id: {stem}@v{number}", f"    recipe: {cell.recipe.value.name}", "    tiers: [release]", "    disposition: experimental"]
        lines += ["    unvalidated: a benchmark's cell", f"    config: {_flow(config)}"]
    (root / "cells" / "many.yaml").write_text("\n".join(lines) + "\n")


def _flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def measure(root: Path) -> dict[str, float]:
    """Processor seconds of: loading the tree, planning every cell, and the command line as a whole (a process of its own)."""
    from matrix.loader import load
    from matrix.plan import Planner

    begin = time.process_time()
    matrix = load(root)
    loaded = time.process_time()
    plan = Planner(matrix).plan(matrix.cells.values())
    planned = time.process_time()
    assert len(plan.cells) == len(matrix.cells)
    before = sum(os.times()[2:4])
    command = [sys.executable, "-m", "matrix", "plan", "--json", "--root", str(root)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode not in (0, 1):  # 1: some of so many layouts do not fit
        raise RuntimeError(done.stderr)
    return {"load": loaded - begin, "plan": planned - loaded, "matrix plan --json": sum(os.times()[2:4]) - before}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with tempfile.TemporaryDirectory() as folder:
        write_tree(Path(folder), count)
        for name, seconds in measure(Path(folder)).items():
            print(f"{count} cells  {name:<20} {seconds:6.2f} s  {seconds / count * 1e3:6.3f} ms a cell")


if __name__ == "__main__":
    main()
