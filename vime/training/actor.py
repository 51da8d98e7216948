"""One trainer rank: owns its part of the model and optimizer, and does what the driver asks of all ranks at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from vime.config.tree import Config
from vime.errors import RunError, UserError
from vime.models.base import Layout, local_weights
from vime.models.hf_io import export_hf
from vime.training import batches, checkpoint
from vime.training.batch import MicroBatch, TrainBatch, pack
from vime.training.checkpoint_writer import Save
from vime.training.distributed import initialise, shut_down
from vime.training.forward import Runner, Scores
from vime.training.images import ImageBatch
from vime.training.metrics import Meter
from vime.training.model import Trained, bare_model, build, set_rate
from vime.training.mtp import DraftLoss, install
from vime.training.objective import Counts, PolicyObjective, SupervisedObjective
from vime.training.schedule import lr_at
from vime.weights.exporter import Shard, gather_plan, shards, whole_tensors

STAGE = "train"


@dataclass(frozen=True)
class Update:
    """What one optimizer step is made from: this rank's micro-batches, and the counts over all ranks."""

    micros: list[MicroBatch]
    counts: Counts


class TrainerActor:
    """A plain class; `vime.loop` makes it a Ray actor. Except `start`, every method is a collective: the driver calls it on all ranks with the same
    arguments."""

    pending_save: Save | None = None

    def start(self, config: Config, rank: int, world_size: int, address: str, port: int) -> dict[str, Any]:
        """Join the trainer's process group at tcp://address:port and load the model. Returns what this rank is.

        Raises UserError for a model, a layout or an option that cannot be had, RunError when the ranks do not meet.
        """
        from vime.platforms.registry import get

        self.config, self.platform = config, get(config.platform)
        self.device = self.platform.device(0)
        self.platform.set_device(0)
        layout = initialise(config, self.platform, rank, world_size, address, port)
        with self.platform.training_memory():
            self.trained: Trained = build(config, self.platform, layout, self.device)
            checkpoint.prepare_optimizer_state(self.trained.optimizer)
        self.layout: Layout = self.trained.layout
        self.trained.optimizer.get_grad_norm = _finite(self.trained.optimizer.get_grad_norm)
        if config.model.load == "torch-dist" and config.model.random_init_seed is None:
            assert config.model.torch_dist_path is not None
            checkpoint.load(self.trained, config.model.torch_dist_path, optimizer=False)
        self.reference = self._copy_of_policy() if config.algo.kl_coef > 0 else None
        self.runner = Runner(self.trained)
        parameters = sum(parameter.numel() for parameter in self.trained.model.parameters())
        return {"rank": rank, "layout": self.layout, "parameters": parameters, "family": self.trained.family.name}

    # ---- training ----------------------------------------------------------------------------------------------------------------------------------

    def train(self, batch: TrainBatch, step: int) -> dict[str, float] | None:
        """One rollout step: `optimizer_steps_per_rollout` updates over the batch. Returns the metrics on the reporting rank, None elsewhere.

        Raises RunError, naming the step, for a batch that cannot be trained on or a gradient that is not finite (before the update is made).
        """
        config = self.config
        updates = self._updates(batch, config.train.optimizer_steps_per_rollout, step)
        every = [micro for update in updates for micro in update.micros]
        own_pass = config.algo.check_old_logprobs or (len(updates) > 1 and config.algo.old_logprobs == "trainer")
        before = _by_micro(self.runner.score(every)) if own_pass else {}
        reference = _by_micro(self.runner.score(every, self.reference)) if self.reference is not None else {}
        meter = Meter()
        for index, update in enumerate(updates):
            objective = PolicyObjective(config.algo, update.counts, before, reference, meter, first=index == 0)
            self._step(update, objective, meter, step)
        unfiltered = config.rollout.top_p == 1.0 and config.rollout.top_k < 1  # else the sampler's distribution differs from the trainer's by design
        return self._report(meter, step, sampler_check=unfiltered)

    def sft_step(self, batch: TrainBatch, step: int) -> dict[str, float] | None:
        """One optimizer step of cross entropy on the batch's loss mask. Metrics as in `train`."""
        (update,) = self._updates(batch, 1, step)
        meter = Meter()
        self._step(update, SupervisedObjective(update.counts, meter), meter, step)
        return self._report(meter, step, sampler_check=False)

    def logprobs(self, sequences: Sequence[Sequence[int]], images: ImageBatch | None = None) -> list[np.ndarray] | None:
        """log p of every token but the first of each sequence, teacher-forced, temperature 1: float32[len − 1] each, on the reporting rank, None elsewhere."""
        batch = TrainBatch.of(sequences, [[0] + [1] * (len(sequence) - 1) for sequence in sequences], images=images)
        (update,) = self._updates(batch, 1, None)
        values = torch.zeros(len(batch.ids), dtype=torch.float32)
        for scores in self.runner.score(update.micros):
            values[scores.micro.positions_N] = scores.logprobs_N.cpu()
        if not self.runner.last_stage:
            return None
        if self.layout.dp_size * self.layout.cp_size > 1:  # each position was filled by one rank, the others hold 0
            on_device = values.to(self.device)
            dist.all_reduce(on_device, group=self._data_group())
            values = on_device.cpu()
        return [values[start + 1 : stop].numpy() for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)] if self.reports else None

    @property
    def reports(self) -> bool:
        """Whether this rank returns the results: the last pipeline stage's first tensor, context and data rank."""
        return self.runner.last_stage and self.layout.tp == self.layout.cp == self.layout.dp == 0

    def _updates(self, batch: TrainBatch, parts: int, step: int | None) -> list[Update]:
        """The batch, planned over ranks and packed; the same plan on every rank. A part whose every token is masked makes no update."""
        where = "log-probs" if step is None else f"step {step}"
        try:
            batch.validate(self.trained.shape.vocab_size)
            updates = [self._update(batch, samples) for samples in batches.minibatches(batch.size, parts)]
        except ValueError as error:
            raise RunError(STAGE, f"{where}: {error}") from None
        updates = [update for update in updates if update.counts.tokens]
        if not updates:
            raise RunError(STAGE, f"{where}: every token of {batch.size} samples is masked, there is nothing to train on")
        return updates

    def _update(self, batch: TrainBatch, samples: list[int]) -> Update:
        tokens = np.add.reduceat(batch.loss_mask > 0, batch.offsets[:-1], dtype=np.int64)[samples]
        layout, parallel = self.layout, self.config.parallel
        multiple = layout.tp_size if parallel.sequence_parallel else 1
        plan = batches.plan(
            batch.lengths[samples].tolist(),
            layout.dp_size,
            self.config.train.max_tokens_per_microbatch,
            lambda index: batch.name(samples[index]),
            context_parallel=layout.cp_size,
            multiple=multiple,
        )
        places = {"depths": self.depths, "cp": layout.cp, "cp_size": layout.cp_size}
        micros = [pack(batch, [samples[index] for index in micro], self.device, multiple, **places) for micro in plan[layout.dp]]
        ahead = tuple(batch.predicted(samples, depth) for depth in range(1, self.depths + 1))
        return Update(micros, Counts(tokens=int(tokens.sum()), sequences=int((tokens > 0).sum()), ahead=ahead))

    def _step(self, update: Update, objective: Callable[..., torch.Tensor], meter: Meter, step: int) -> None:
        draft = DraftLoss(self.config.train.mtp.loss_weight, update.counts.ahead, meter) if self.depths else None
        self.runner.backward(update.micros, objective, draft)
        set_rate(self.trained.optimizer, lr_at(step, self.config.train), self.config.train)
        try:
            _, grad_norm, _ = self.trained.optimizer.step()
        except NotFiniteError as error:
            raise RunError(
                STAGE,
                f"step {step}: the gradient norm is {error}; the weights were not updated. Look at train/logprob_gap_* of the steps before, and lower train.lr",
            ) from None
        meter.update(float(grad_norm))

    def _report(self, meter: Meter, step: int, *, sampler_check: bool) -> dict[str, float] | None:
        if not self.runner.last_stage:
            return None
        metrics = meter.reduce(self._data_group(), sampler_check=sampler_check)
        if not math.isfinite(metrics["train/loss"]):
            raise RunError(STAGE, f"step {step}: the loss is {metrics['train/loss']}")
        return {**metrics, "train/lr": lr_at(step, self.config.train)} if self.reports else None

    def _data_group(self) -> Any:
        """Ranks that hold other tokens of the batch."""
        from megatron.core import parallel_state

        return parallel_state.get_data_parallel_group(with_context_parallel=True)

    def _copy_of_policy(self) -> torch.nn.Module:
        """The reference: a second model holding the weights the run starts from (a resumed run makes it before it loads its checkpoint)."""
        trained = self.trained
        model = bare_model(trained.family, trained.hf_config, trained.config, trained.shape, trained.layout, self.device, mtp=trained.mtp > 0)
        install(model, self.config.train.mtp.gradient)
        with torch.no_grad():
            for (_, copy), (_, original) in zip(local_weights(model), local_weights(trained.model), strict=True):
                copy.copy_(original)
        return model.requires_grad_(False)

    # ---- weights -----------------------------------------------------------------------------------------------------------------------------------

    def shards(self) -> list[Shard]:
        """This rank's weights as slices of Hugging Face tensors: views of the parameters, valid until the next update."""
        return list(shards([self.trained.model], self.trained.table, self.layout))

    @property
    def depths(self) -> int:
        """Draft layers that are trained."""
        return self.trained.mtp if self.config.train.mtp.loss_weight > 0 else 0

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(self, *args)` in this process: the sending side of weight transports."""
        return function(self, *args)

    def export_hf(self, path: str) -> None:
        """Write the weights as a Hugging Face directory beside the tokenizer of model.path. A collective; rank 0 writes."""
        trained, local = self.trained, self.shards()
        plan = gather_plan(local, list(trained.table.shapes))
        sizes = {name: torch.Size(infos[0].global_shape).numel() * infos[0].dtype.itemsize for name, infos in plan.items()}
        hf_config = trained.family.exported_config(trained.hf_config, mtp=trained.mtp > 0)
        export_hf(whole_tensors(local, plan), sizes, path, self.config.model.path, hf_config, writes=dist.get_rank() == 0)
        dist.barrier()

    # ---- checkpoints -------------------------------------------------------------------------------------------------------------------------------

    def save(self, path: str, extra: dict[str, Any]) -> None:
        """Write a checkpoint and prune older ones beside it to `checkpoint.keep`. With `checkpoint.async_save` the files are written while training goes on:
        it stands, and a failure is told, when `finish_save` says so.

        Raises RunError(stage "checkpoint"); what stood before is left alone.
        """
        self.finish_save(wait=True)
        settings = self.config.checkpoint
        self.pending_save = checkpoint.begin(self.trained, path, extra, settings.keep, background=settings.async_save)
        if not settings.async_save:
            self.finish_save(wait=True)

    def finish_save(self, wait: bool) -> bool:
        """Publish the checkpoint under way if every rank has written its files, or wait for that. Returns whether none is under way any more. Raises RunError
        (stage "checkpoint") when a rank could not write."""
        if self.pending_save is None:
            return True
        if not wait:
            left = torch.tensor([0 if self.pending_save.written else 1], device=self.device)
            dist.all_reduce(left)
            if int(left):
                return False
        save, self.pending_save = self.pending_save, None
        save.finish()
        return True

    def load(self, path: str) -> dict[str, Any]:
        """Go on from a checkpoint, bit for bit. Returns its `extra`. Raises UserError when it is not whole or of another model."""
        self.finish_save(wait=True)
        if not Path(path).is_dir():
            raise UserError(f"{path}: no such checkpoint directory")
        return checkpoint.load(self.trained, path)

    def stop(self) -> None:
        """End a save under way and leave the process group."""
        self.finish_save(wait=True)
        shut_down()


class NotFiniteError(ArithmeticError):
    """A gradient norm that is NaN or infinite."""


def _finite(norm: Callable[[], Any]) -> Callable[[], float]:
    """Megatron's step asks for the norm over all ranks before it clips and updates: the one place where every rank can refuse together, with the weights
    still whole."""

    def checked() -> float:
        value = float(norm())
        if not math.isfinite(value):
            raise NotFiniteError(value)
        return value

    return checked


def _by_micro(scores: Sequence[Scores]) -> dict[int, Scores]:
    return {id(score.micro): score for score in scores}
