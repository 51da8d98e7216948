"""The synchronous driver: every step samples with the newest weights, trains on the answers once, and hands the new weights back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.config.tree import Config
from vime.data import Prompt, PromptSource, Sample, load_held_out, load_prompts, load_tokenizer
from vime.loop.batch import assemble, readable, rollout_metrics
from vime.loop.clock import Progress, StepClock
from vime.loop.cluster import Cluster
from vime.loop.recovery import EnginePool
from vime.loop.trainers import TrainerGroup
from vime.platforms.base import Platform
from vime.rewards import RewardPool
from vime.tracking.run_dir import RunDir
from vime.weights.session import WeightSync


@dataclass(frozen=True)
class Inputs:
    """What a run reads before anything is started."""

    tokenizer: Any
    source: PromptSource
    held_out: list[Prompt]
    rewards: RewardPool


class SyncRun:
    """One attempt of one run."""

    def __init__(self, config: Config, platform: Platform, run: RunDir, inputs: Inputs):
        self.config, self.platform, self.run = config, platform, run
        self.source, self.rewards, self.held_out, self.tokenizer = inputs.source, inputs.rewards, inputs.held_out, inputs.tokenizer

    @staticmethod
    @contextlib.contextmanager
    def inputs(config: Config) -> Iterator[Inputs]:
        """Tokenizer, prompts, held-out prompts and a reward pool with warm workers; a UserError where one of them is not right."""
        tokenizer = load_tokenizer(config.model.path)
        prompts = load_prompts(config.data, tokenizer, config.rollout.max_prompt_tokens)
        held_out = load_held_out(config.data, config.eval, tokenizer, config.rollout.max_prompt_tokens, prompts) if config.eval.every else []
        rewards = RewardPool(config.reward)
        try:
            yield Inputs(tokenizer, PromptSource(prompts, config.seed, config.data.shuffle), held_out, rewards)
        finally:
            rewards.close()

    def train(self, checkpoint: Path | None) -> None:
        """From `checkpoint` (or the first weights) to the last planned step."""
        with Cluster(self.config, self.platform) as cluster:
            self.progress = Progress(self.config.name, 0, self.config.train.steps, self.config.tracking.log_every)
            self.progress.note("starting trainers and engines")
            self.trainers, self.engines = TrainerGroup(cluster, self.config), EnginePool(cluster, self.config, self.platform, self.tokenizer, self.run)
            cluster.start_all(self.trainers, self.engines)
            first = self._restore(checkpoint)
            self.weights = WeightSync(self.trainers.workers, self.engines.workers, self.config, self.platform)
            self._push(first)  # also at a fresh start: the first rollout must not depend on what the engine loaded by itself
            self.progress = Progress(self.config.name, first, self.config.train.steps, self.config.tracking.log_every)
            for step in range(first, self.config.train.steps):
                self._step(step)

    def _step(self, step: int) -> None:
        clock = StepClock()
        with clock.stage("eval"):
            metrics = self._evaluate(step)
        with clock.stage("rollout"):
            samples = self._rollout(step)
        with clock.stage("reward"):
            self.rewards.score(samples)
        with clock.stage("train"):
            metrics |= self.trainers.train(assemble(samples, self.config), step)
        with clock.stage("weight_sync"):
            metrics |= self._push(step + 1)
        metrics |= rollout_metrics(samples)
        self.run.step(step, metrics | clock.metrics(metrics["rollout/tokens"]))
        self.run.samples(step, readable(samples, self.config.tracking.samples_per_step))
        with clock.stage("checkpoint"):
            self._checkpoint(step)
        self.progress.step(step, metrics | clock.metrics(metrics["rollout/tokens"]))
