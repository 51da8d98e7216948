"""How the cost of the site grows with cells and nights, and what pages weigh.

Makes a matrix of so many cells, a verdict a night for each (about 170 kB, five baseline runs of 200 steps), and the last night's runs; then builds the
site from nothing, again with one more night, and again with nothing new. Targets on two cores: 500 cells × 90 nights
in 30 s, one new night in 3 s, pages below 1.5 MB.

    python benchmarks/site_scale.py                                 # small: growth alone
    python benchmarks/site_scale.py --cells 500 --nights 90         # the targets themselves: about 8 GB of files
    python benchmarks/site_scale.py --png summary                   # what pictures cost in addition
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from matrix_scale import write_tree  # noqa: E402

STEPS, BASELINES = 200, 5
METRICS = {
    "train/logprob_gap_mean": 0.012, "train/kl_ref": 0.03, "train/entropy": 0.6, "rollout/response_len_mean": 900.0, "rollout/truncated_frac": 0.05,
    "train/grad_norm": 0.3, "spec/accept_len": 1.7, "perf/step_s": 40.0, "perf/weight_sync_s": 2.0, "perf/peak_mem_gib": 50.0,
    "rollout/nll_minus_entropy_z": 0.1, "train/loss": 0.02, "perf/rollout_s": 25.0, "perf/train_s": 12.0, "perf/tokens_per_s": 9000.0,
}  # fmt: skip
START = datetime(2026, 1, 1, 3, tzinfo=UTC)
MARK = {"created": "2000-01-01T00:00:00+00:00", "commit": "c0ffee" * 6 + "c0ff", "cell": "THE-CELL", "path": "/THE/RUN"}


@dataclass(frozen=True)
class Made:
    """A verdict of one science with marks to be filled in, and the run it is about."""

    verdict: str
    run: Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--nights", type=int, nargs="+", default=[10])
    parser.add_argument("--png", default="none", help="none, summary or all")
    parser.add_argument("--single-file", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the numbers there")
    options = parser.parse_args()
    print(f"{'cells':>6} {'nights':>6} {'GB':>5} | {'from nothing':>14} | {'one new night':>14} | {'nothing new':>14} | {'largest page':>12} {'site':>8}")
    rows = []
    for cells in options.cells:
        for nights in options.nights:
            place = Path(tempfile.mkdtemp(prefix="site-scale-"))
            try:
                rows.append(measure(place, cells, nights, options.png, options.single_file))
            finally:
                shutil.rmtree(place)
            print(line(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def line(row: dict[str, float]) -> str:
    def pair(name: str) -> str:
        return f"{row[name]:6.2f} s, {row[name + ' cpu']:4.1f}"

    return (
        f"{row['cells']:>6.0f} {row['nights']:>6.0f} {row['bytes'] / 1e9:>5.2f} | {pair('cold')} | {pair('night')} | {pair('same')} | "
        f"{row['largest'] / 1e3:>9.0f} kB {row['site'] / 1e6:>5.0f} MB"
    )


def measure(place: Path, cells: int, nights: int, png: str, single_file: bool) -> dict[str, float]:
    """Wall and processor seconds of three builds, and sizes in bytes."""
    from matrix.loader import load

    tree, root, out = place / "checkout" / "matrix", place / "results", place / "site"
    write_tree(tree, cells)
    matrix = load(tree)
    made = {}
    keys = {}
    for name, cell in matrix.cells.items():
        science = _science(matrix, cell)
        if science not in made:
            made[science] = make(place / "made" / science[:12], tree, cell, science)
        keys[cell.key] = (name, made[science])
    for night in range(nights):
        add_night(root, keys, night, runs=night == nights - 1)

    build = [
        sys.executable,
        "-m",
        "reports",
        "site",
        str(root),
        "-o",
        str(out),
        "--matrix",
        str(tree),
        "--png",
        png,
        *(["--single-file"] if single_file else []),
    ]
    row: dict[str, float] = {"cells": cells, "nights": nights, "bytes": size(root)}
    row["cold"], row["cold cpu"] = timed(build)
    add_night(root, keys, nights, runs=True)
    row["night"], row["night cpu"] = timed(build)
    row["same"], row["same cpu"] = timed(build)
    pages = [path.stat().st_size for path in out.rglob("*.html")]
    assert len(pages) == cells + 1
    row["largest"], row["site"] = max(pages), size(out)
    return row


def timed(command: Sequence[str]) -> tuple[float, float]:
    """(wall, processor) seconds of the command as people start it, imports included."""
    os.sync()  # what the maker of the files left to be written is not the build's work
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise RuntimeError(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _science(matrix, cell) -> str:  # type: ignore[no-untyped-def]
    from matrix.resolver import science_hash

    return science_hash(cell, matrix)


def make(place: Path, tree: Path, cell, science: str) -> Made:  # type: ignore[no-untyped-def]
    """A baseline in the tree, and a healthy candidate's verdict against it."""
    from matrix.rule import Exactness, JudgeRule, Margins, Windows
    from reports.judge import judge
    from reports.readers import read_run
    from reports.record import record
    from reports.verdict import Declared

    reward = cell.recipe.value.reward
    labels = {"cell": MARK["cell"], "recipe": cell.recipe.value.name, "science_hash": science, "reward": {"id": reward.id, "range": list(reward.range)}}
    rule = JudgeRule(
        sided="one", planned_steps=STEPS, windows=Windows(first=20, last=50), delta=Margins(first=0.1, last=0.1, whole=0.1, residual=2.0),
        delta_reason="a benchmark", exactness=Exactness(weight_digests=False),
    )  # fmt: skip
    declared = Declared(cell=MARK["cell"], recipe=cell.recipe.value.name, science_hash=science, reward_id=reward.id, reward_range=tuple(reward.range))
    runs = [make_run(place / f"seed-{seed}", seed, labels) for seed in (*range(BASELINES), 100)]
    folder = record([read_run(run) for run in runs[:-1]], rule, declared, tree / "baselines", "a benchmark")
    verdict = judge([runs[-1]], folder, rule, declared)
    assert verdict.outcome == "PASS", verdict.reasons
    text = verdict.model_dump_json(indent=1)
    for mark, value in (("created", verdict.created), ("path", str(runs[-1]))):
        text = text.replace(value, MARK[mark])
    return Made(text, runs[-1])


def make_run(path: Path, seed: int, labels: dict[str, object]) -> Path:
    rng = np.random.default_rng([seed, int(str(labels["science_hash"])[:8], 16)])
    reward = 0.3 + 0.5 * (1 - np.exp(-np.arange(STEPS) / 40)) + rng.normal(0, 0.003) + rng.normal(0, 0.02, STEPS)
    others = {name: around * (1 + rng.normal(0, 0.1, STEPS)) for name, around in METRICS.items()}
    (path / "samples").mkdir(parents=True)
    with (path / "metrics.jsonl").open("w") as out:
        for step in range(STEPS):
            metrics = {"rollout/reward_mean": float(reward[step]), **{name: float(values[step]) for name, values in others.items()}}
            out.write(json.dumps({"step": step, "time": 1.7e9 + step, "metrics": metrics}) + "\n")
    manifest = {
        "schema_version": 1, "labels": labels, "seed": seed, "planned_steps": STEPS, "commit": MARK["commit"], "dirty": False,
        "versions": {"torch": "2.10.0", "vllm": "0.23.0"}, "host": {"hostname": "node", "machine": "aarch64", "system": "Linux", "cpus": 192},
        "devices": {"count": 8, "resource": "NPU"}, "attempts": [{"start": 1.0, "end": 2.0, "reason": "start; completed"}],
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    for step in (0, STEPS // 2, STEPS - 1):
        sample = {"prompt": "What is 3 + 4?" * 20, "response": "Seven. " * 60, "label": "7", "reward": 1.0, "finish_reason": "stop"}
        (path / "samples" / f"step-{step:06d}.jsonl").write_text((json.dumps(sample) + "\n") * 4)
    return path


def add_night(root: Path, keys: dict[str, tuple[str, Made]], night: int, runs: bool) -> None:
    """One verdict a cell; of the last night also the run."""
    time_ = START + timedelta(days=night)
    commit = f"{night:040x}"
    for key, (name, made) in keys.items():
        folder = root / key
        text = made.verdict.replace(MARK["created"], time_.isoformat()).replace(MARK["commit"], commit).replace(MARK["cell"], name)
        run = folder / "seed-100"
        text = text.replace(MARK["path"], str(run))
        if night % 7 == 3 and hash(key) % 40 == 0:
            text = text.replace('"outcome": "PASS"', '"outcome": "FAIL"', 1)
        (folder / "verdicts").mkdir(parents=True, exist_ok=True)
        (folder / "verdicts" / f"{time_:%Y%m%dT%H%M%S}-{night:09d}Z.json").write_text(text)
        if runs:
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(made.run, run)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
