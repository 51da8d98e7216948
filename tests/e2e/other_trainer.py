"""A trainer that is not vime, for tests of other frameworks: a linear policy learns to answer a two-armed bandit by REINFORCE, in plain Python.

`other_trainer.py --steps N --seed S --lr X [--csv FILE] [--die-at K] [--worse]`: writes verl's console lines to stdout, or a table to a CSV file.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from pathlib import Path

BATCH = 256


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--worse", action="store_true")
    options = parser.parse_args()
    chance, logit = random.Random(options.seed), -1.5
    table = options.csv.open("w") if options.csv else None
    if table:
        table.write("step,critic/rewards/mean,actor/entropy\n")
    for step in range(1, options.steps + 1):
        if step == options.die_at:
            print("torch.OutOfMemoryError: CUDA out of memory", file=sys.stderr, flush=True)
            return 1
        right = 1 / (1 + math.exp(-logit))
        rewards = [float(chance.random() < right) for _ in range(BATCH)]
        mean = sum(rewards) / BATCH
        gradient = sum((reward - mean) * (1 - right if reward else -right) for reward in rewards) / BATCH
        logit += (0.0 if options.worse else 1.0) * options.lr * 4000 * gradient
        if table:
            table.write(f"{step},{mean:.6f},{right:.6f}\n")
            table.flush()
        else:
            print(
                f"\x1b[36m(TaskRunner pid=71)\x1b[0m step:{step} - critic/rewards/mean:{mean:.6f} - actor/entropy:{right:.6f} - perf/throughput:1200.5",
                flush=True,
            )
        time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(main())
