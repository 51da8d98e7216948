"""What scoring costs a step: 256 `spell_backward` references as answers, 60 steps, per reward and number of workers. Run: python benchmarks/reward_pool.py"""

from __future__ import annotations

import itertools
import statistics
import time

import numpy as np

from vime.config.tree import RewardConfig
from vime.data import Prompt, Sample
from vime.data.tasks import task_stream
from vime.rewards import RewardPool

GROUPS, SIZE, STEPS = 16, 16, 60


def batch(step: int, prompts: list[Prompt]) -> list[Sample]:
    return [
        Sample(f"{step}-{g}-{i}", g, i, prompt, [3, 4, 2], np.zeros(3, np.float32), np.ones(3, np.uint8), "stop", 0, prompt.label)
        for g, prompt in enumerate(prompts)
        for i in range(SIZE)
    ]


def measure(name: str, workers: int, prompts: list[Prompt]) -> tuple[float, list[float]]:
    """Seconds to start the pool, and milliseconds of each step."""
    started = time.monotonic()
    with RewardPool(RewardConfig(name=name, workers=workers)) as pool:
        start = time.monotonic() - started
        return start, [1000 * pool.score(batch(step, prompts))["perf/reward_s"] for step in range(STEPS)]


def main() -> None:
    raw = itertools.islice(task_stream("spell_backward", 1, {}), GROUPS)
    prompts = [Prompt(i, str(r.prompt), [1, 3], r.label, r.metadata) for i, r in enumerate(raw)]
    print(f"{'reward':<14} workers  start s  median ms  max ms  ({GROUPS * SIZE} answers a step)")
    for name, workers in itertools.product(("exact_match", "reasoning_gym", "math"), (1, 2)):
        start, steps = measure(name, workers, prompts)
        print(f"{name:<14} {workers:>7}  {start:>7.2f}  {statistics.median(steps):>9.2f}  {max(steps):>6.1f}")


if __name__ == "__main__":
    main()
