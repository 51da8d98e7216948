"""How the cost of judging grows: with the number of cells, from the cache of parsed curves and cold, and with the size of a file.

Makes its own runs (8 a cell, 1,000 steps, 25 metrics), judges every cell with two processes, and prints a line a size. Targets on two cores:
500 cells from the cache in under 5 s, cold in under 90 s; memory that does not grow with what stands between the records of a log.

    python benchmarks/judge_scale.py                     # 20 to 100 cells; times per cell are what a larger number costs
    python benchmarks/judge_scale.py --cells 500         # the targets themselves: about 5 GB of files
    python benchmarks/judge_scale.py --files 1 10 100    # memory over file size, in MB
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

RUNS, STEPS, METRICS = 8, 1000, 25
CANDIDATES = 3
NAMES = [
    "rollout/reward_mean", "rollout/response_len_mean", "rollout/truncated_frac", "rollout/nll_minus_entropy_z", "rollout/reward_error_count",
    "train/loss", "train/grad_norm", "train/lr", "train/entropy", "train/ppo_kl", "train/kl_ref", "train/logprob_gap_mean", "train/logprob_gap_p99",
    "train/logprob_gap_max", "perf/step_s", "perf/rollout_s", "perf/train_s", "perf/weight_sync_s", "perf/tokens_per_s", "perf/peak_mem_gib",
    "spec/accept_len", "rollout/reward_std", "rollout/groups", "train/tokens", "train/clip_frac",
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--files", type=int, nargs="*", default=[1, 10, 100], help="sizes of one log, in MB")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--where", type=Path, help="where the files are made and kept (default: a temporary folder, removed afterwards)")
    options = parser.parse_args()
    root = options.where or Path(tempfile.mkdtemp(prefix="judge-scale-"))
    try:
        if options.cells:
            cells(root, options.cells, options.processes)
        if options.files:
            files(root, options.files)
    finally:
        if options.where is None:
            shutil.rmtree(root)


def cells(root: Path, sizes: list[int], processes: int) -> None:
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        make = list(pool.imap_unordered(make_cell, [root / f"cell-{number}" for number in range(max(sizes))], 4))
        total = sum(make)
        print(f"{max(sizes)} cells x {RUNS} runs x {STEPS} steps x {METRICS} metrics: {total / 1e9:.2f} GB; {processes} processes")
        time.sleep(2.5)  # the cache keeps no file that changed within two seconds
        print(f"{'cells':>6} {'cold s':>8} {'ms a cell':>10} {'cached s':>9} {'ms a cell':>10}")
        for size in sorted(sizes):
            cache = root / f"cache-{size}"
            cold, cached = (timed(pool, [(root / f"cell-{number}", cache) for number in range(size)]) for _ in range(2))
            print(f"{size:>6} {cold:>8.2f} {1000 * cold / size:>10.1f} {cached:>9.2f} {1000 * cached / size:>10.2f}", flush=True)


def timed(pool: multiprocessing.pool.Pool, work: list[tuple[Path, Path]]) -> float:
    begin = time.perf_counter()
    outcomes = pool.map(judge_cell, work, max(len(work) // 16, 1))
    seconds = time.perf_counter() - begin
    assert all(outcome == "PASS" for outcome in outcomes), sorted(set(outcomes))
    return seconds


def make_cell(folder: Path) -> int:
    """Eight healthy runs of one cell, unless they are there (`--where`); returns their size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    there = [path.stat().st_size for path in folder.glob("seed-*.jsonl")]
    if len(there) == RUNS:
        return sum(there)
    rng = np.random.default_rng(int(folder.name.rpartition("-")[2]))
    size = 0
    for run in range(RUNS):
        values = rng.normal(1.0, 0.1, (STEPS, METRICS))
        values[:, 0] = 0.3 + 0.6 * (1 - np.exp(-np.arange(STEPS) / 100)) + rng.normal(0, 0.003) + rng.normal(0, 0.02, STEPS)
        file = folder / f"seed-{run}.jsonl"
        partial = folder / f".seed-{run}"
        with partial.open("w") as out:
            for step, row in enumerate(values.tolist()):
                out.write(json.dumps({"step": step, "time": 1.7e9 + step, "metrics": dict(zip(NAMES, row))}) + "\n")
        partial.rename(file)
        size += file.stat().st_size
    return size


def judge_cell(work: tuple[Path, Path]) -> str:
    from matrix.rule import Exactness, JudgeRule, Margins, Windows
    from reports.judge import judge
    from reports.readers import read_runs
    from reports.readers.base import Reading
    from reports.verdict import Declared

    folder, cache = work
    rule = JudgeRule(
        sided="one",
        planned_steps=STEPS,
        windows=Windows(first=100, last=250),
        delta=Margins(first=0.1, last=0.1, whole=0.1, residual=2.0),
        delta_reason="a benchmark",
        exactness=Exactness(weight_digests=False),
    )
    runs = read_runs([folder / f"seed-{run}.jsonl" for run in range(RUNS)], Reading(cache=cache))
    return str(judge(runs[:CANDIDATES], runs[CANDIDATES:], rule, Declared(assume_comparable=True)).outcome)


def files(root: Path, sizes: list[int]) -> None:
    """Peak memory of a process that reads one console log of 1,000 records and any number of other lines between them."""
    print(f"{'log MB':>7} {'read s':>7} {'MB/s':>6} {'peak MB':>8}")
    for size in sizes:
        path = root / f"log-{size}.txt"
        filler = "(EngineCore pid=7) INFO 11-30 18:00:01 [loggers.py:127] Avg prompt throughput: 812.4 tokens/s, Running: 12 reqs, GPU KV cache usage: 3.1%\n"
        between = max(int(size * 1e6 / 1000 - 700) // len(filler), 0)
        with path.open("w") as out:
            for step in range(1000):
                out.write(f"(TaskRunner pid=1) step:{step} - " + " - ".join(f"m{i}/mean:{0.1 * i + step}" for i in range(METRICS)) + "\n" + filler * between)
        begin = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            steps, seconds, peak = pool.apply(read_one, (path,))
        assert steps == 1000, begin
        print(f"{path.stat().st_size / 1e6:>7.0f} {seconds:>7.2f} {path.stat().st_size / 1e6 / seconds:>6.0f} {peak:>8.0f}", flush=True)
        path.unlink()


def read_one(path: Path) -> tuple[int, float, float]:
    """(steps, seconds, peak resident memory in MB)."""
    from reports.readers import read_run

    begin = time.perf_counter()
    run = read_run(path)
    return len(run.steps), time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
