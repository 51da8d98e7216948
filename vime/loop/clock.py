"""Seconds of each stage of a step, and the progress line of a run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping

from vime.config.tree import Config


class StepClock:
    """Collects `perf/<stage>_s` of one step."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def metrics(self, tokens: float) -> dict[str, float]:
        """Per-stage seconds, the step's wall seconds and sampled tokens per second of the step."""
        step_s = time.perf_counter() - self.begin
        return {**{f"perf/{name}_s": seconds for name, seconds in self.seconds.items()}, "perf/step_s": step_s, "perf/tokens_per_s": tokens / step_s}


class Progress:
    """One line per step on stderr: where the run is, how it goes, when it ends."""

    def __init__(self, config: Config, first: int):
        self.name, self.first, self.steps, self.every = config.name, first, config.train.steps, config.tracking.log_every
        self.begin = time.monotonic()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        done = step + 1 - self.first
        if done % self.every and step + 1 != self.steps:
            return
        left = (time.monotonic() - self.begin) / done * (self.steps - step - 1)
        shown = {
            "reward": "rollout/reward_mean",
            "loss": "train/loss",
            "grad": "train/grad_norm",
            "gap": "train/logprob_gap_mean",
            "len": "rollout/response_len_mean",
            "s": "perf/step_s",
        }
        values = "  ".join(f"{label} {metrics[key]:.4g}" for label, key in shown.items() if key in metrics)
        print(f"{self.name}  step {step + 1}/{self.steps}  {values}  left {left:.0f} s", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        print(f"{self.name}  {text}", file=sys.stderr, flush=True)
