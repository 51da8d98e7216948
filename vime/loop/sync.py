"""The synchronous driver: every step samples with the newest weights, trains on the answers, and hands the new weights back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.config.tree import Config
from vime.data import ImageProcessor, Prompt, PromptSource, Sample, load_held_out, load_image_processor, load_prompts, load_tokenizer
from vime.loop.batch import assemble, readable, rollout_metrics
from vime.loop.clock import Progress, StepClock
from vime.loop.cluster import Cluster
from vime.loop.recovery import EngineRecovery
from vime.loop.residency import MemoryTurns
from vime.loop.trainers import TrainerGroup
from vime.platforms.base import Platform
from vime.rewards import RewardPool, apply_truncated_policy
from vime.rollout.router import Router
from vime.tracking.run_dir import RunDir
from vime.weights.session import WeightSync


@dataclass(frozen=True)
class Inputs:
    """What a run reads before anything is started."""

    tokenizer: Any
    source: PromptSource
    held_out: list[Prompt]
    rewards: RewardPool
    images: ImageProcessor | None  # of a model that sees


@contextlib.contextmanager
def open_inputs(config: Config) -> Iterator[Inputs]:
    """Tokenizer, prompts, held-out prompts and a reward pool with warm workers; a UserError where one of them is not right."""
    tokenizer = load_tokenizer(config.model.path)
    images, limit = load_image_processor(config.model.path), config.rollout.max_prompt_tokens
    prompts = load_prompts(config.data, tokenizer, limit, images=images)
    held_out = load_held_out(config.data, config.eval, tokenizer, limit, prompts, images=images) if config.eval.every else []
    with RewardPool(config.reward) as rewards:
        yield Inputs(tokenizer, PromptSource(prompts, config.seed, config.data.shuffle), held_out, rewards, images)


class SyncRun:
    """One attempt of one run, from the workers' start to the last planned step."""

    def __init__(self, config: Config, platform: Platform, run: RunDir, inputs: Inputs):
        self.config, self.platform, self.run, self.inputs = config, platform, run, inputs
        self._saving: dict[str, Any] | None = None  # the checkpoint under way: fields of its event

    def train(self, checkpoint: Path | None) -> None:
        """Go from `checkpoint` (None: the model's first weights) through all planned steps."""
        with Cluster(self.config, self.platform, self.run.path / "workers.log") as cluster:
            Progress(self.config, 0).note("starting trainers and engines")
            self._start(cluster)
            first = self._restore(checkpoint)
            self._push(first)  # also at a fresh start: no rollout depends on what an engine loaded by itself
            if self.config.eval.every and first == 0:
                self._score_held_out(0)  # where the run starts from: an event, as no step has been done
            progress = Progress(self.config, first)
            for step in range(first, self.config.train.steps):
                progress.step(step, self._step(step))
            if self.config.checkpoint.save_hf:
                with self.turns.training():
                    self.trainers.export_hf(self.run.path / "hf")

    def _step(self, step: int) -> dict[str, float]:
        clock = StepClock()
        metrics: dict[str, float] = {}
        with clock.stage("rollout"):
            samples = self._rollout(step)
        with clock.stage("reward"):
            self.inputs.rewards.score(samples)
            apply_truncated_policy(samples, self.config.rollout.truncated)
        with clock.stage("train"):
            self.turns.to_training()
            metrics |= self.trainers.train(assemble(samples, self.config, self.inputs.images), step)
        with clock.stage("weight_sync"):
            self._push(step + 1)
        metrics |= rollout_metrics(samples) | self.router.counts.metrics()
        metrics |= clock.metrics(metrics["rollout/tokens"])
        metrics |= self._evaluate(step)
        self.run.step(step, metrics)
        self.run.samples(step, readable(samples, self.config.tracking.samples_per_step))
        self._save(step)  # last: a checkpoint of a step whose record is not written would lose that record on resume
        return metrics

    # ---- the stages -------------------------------------------------------------------------------------------------------------------------------------

    def _start(self, cluster: Cluster) -> None:
        workers = cluster.start()
        self.trainers = TrainerGroup(workers.trainers, self.config)
        self.turns = MemoryTurns(workers.trainers, workers.engines, self.config, self.platform)
        folder = str(self.run.path / "weights")
        self.weights = WeightSync(workers.trainers, workers.engines, self.config, self.platform, directory=folder, committed=self.turns.synced)
        self.router = Router(workers.engines, self.config, self.inputs.tokenizer, event=self.run.event)
        holders = [self.weights.rejoin, self.router.rejoin, self.turns.rejoin]
        self.recovery = EngineRecovery(cluster, workers.engines, holders, self.run, self.config.rollout.max_engine_restarts)

    def _rollout(self, step: int) -> list[Sample]:
        groups = self.inputs.source.take(self.config.rollout.prompts_per_step)
        return self.recovery.guard(lambda: self.router.generate(step, groups, refill=self.inputs.source.take), rejoin=lambda: self._push(step))

    def _push(self, version: int) -> None:
        self.turns.to_sync()
        report = self.recovery.guard(lambda: self.weights.push(version))
        self.turns.to_rollout()
        self.run.event("weight_sync", **report.event())

    def _evaluate(self, step: int) -> dict[str, float]:
        """Score on the held-out prompts with the weights that `step` made: after every `eval.every` steps and after the last."""
        every, last = self.config.eval.every, step + 1 == self.config.train.steps
        return self._score_held_out(step + 1) if every and ((step + 1) % every == 0 or last) else {}

    def _score_held_out(self, version: int) -> dict[str, float]:
        """`eval/<set>/score`: the mean over the prompts that could be scored; `eval/<set>/error_count`: those that could not."""
        samples = self.recovery.guard(lambda: self.router.evaluate(version, self.inputs.held_out), rejoin=lambda: self._push(version))
        self.inputs.rewards.score(samples)
        scored = [sample.reward for sample in samples if sample.reward is not None]
        group = f"eval/{self.config.eval.name}"
        metrics = {f"{group}/score": sum(scored) / len(scored)} if scored else {}
        metrics[f"{group}/error_count"] = float(len(samples) - len(scored))
        self.run.event("eval", version=version, **{key.removeprefix("eval/"): value for key, value in metrics.items()})
        return metrics

    # ---- checkpoints ------------------------------------------------------------------------------------------------------------------------------------

    def _save(self, step: int) -> None:
        settings, last = self.config.checkpoint, step + 1 == self.config.train.steps
        if (settings.every and (step + 1) % settings.every == 0) or (last and settings.save_last):
            self._finish_save(wait=True)
            name, begin = f"step-{step + 1:06d}", time.perf_counter()
            with self.turns.training():
                self.trainers.save((self.run.checkpoints / name).absolute(), {"steps_done": step + 1, "source": self.inputs.source.state()})
            self._saving = {"name": name, "steps_done": step + 1, "blocked_s": time.perf_counter() - begin, "begin": begin}
        self._finish_save(wait=last or not settings.async_save)

    def _finish_save(self, wait: bool) -> None:
        """Record the checkpoint under way, if there is one and it stands by now."""
        if self._saving is not None and (not self.config.checkpoint.async_save or self.trainers.finish_save(wait)):
            begin = self._saving.pop("begin")
            self.run.event("checkpoint", **self._saving, seconds=time.perf_counter() - begin)
            self._saving = None

    def _restore(self, checkpoint: Path | None) -> int:
        """The first step to do."""
        if checkpoint is None:
            return 0
        extra = self.trainers.load(checkpoint.absolute())
        self.inputs.source.restore(extra["source"])
        return int(extra["steps_done"])
