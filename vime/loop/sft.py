"""Supervised training on the labels: the same trainers, no engines. It makes the warm start of a recipe."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vime.config.resolve import Resolved
from vime.config.tree import Config
from vime.data import Prompt, corrupt_labels, encode_label, label_alphabet, load_image_processor, load_prompts, load_tokenizer
from vime.errors import UserError
from vime.loop.clock import Progress, StepClock
from vime.loop.cluster import Cluster
from vime.loop.start import attempt, manifest, prepare, run_path
from vime.loop.trainers import TrainerGroup
from vime.tracking.run_dir import RunDir
from vime.training.batch import TrainBatch
from vime.training.images import image_batch


def start_sft(resolved: Resolved, out: Path | None) -> Path:
    """Train, then write the Hugging Face directory `sft.output` (default: hf/ in the run directory). Returns that directory."""
    config = resolved.config
    platform = prepare(config, serves=False)
    directory = run_path(config, out)
    output = Path(config.sft.output) if config.sft.output else directory / "hf"
    check_output(output)
    batches = LabelBatches(config)
    run = RunDir.create(directory, resolved, manifest(resolved, platform))
    with attempt(run, "start"), Cluster(config, platform, run.path / "workers.log") as cluster:
        Progress(config, 0).note("starting trainers")
        trainers = TrainerGroup(cluster.start(engines=False).trainers, config)
        progress = Progress(config, 0)
        for step in range(config.train.steps):
            clock = StepClock()
            batch = batches.next()
            with clock.stage("train"):
                metrics = trainers.sft_step(batch, step)
            metrics |= clock.metrics(float(batch.loss_mask.sum()))
            run.step(step, metrics)
            progress.step(step, metrics)
        trainers.export_hf(output.absolute())
        progress.note(f"wrote {output}")
    return output


def check_output(output: Path) -> None:
    """Raises UserError for a place that may not be replaced whole: only a model directory may."""
    if output.exists() and not (output.is_dir() and ((output / "config.json").is_file() or not any(output.iterdir()))):
        raise UserError(f"sft.output: {output} holds something else than a model and would be replaced: name a new directory, or empty this one")


class LabelBatches:
    """Batches of prompts drawn with replacement, each followed by its label; only label tokens and the end mark are in the loss."""

    def __init__(self, config: Config):
        self.config = config
        self.tokenizer: Any = load_tokenizer(config.model.path)
        self.images = load_image_processor(config.model.path)
        self.prompts: Sequence[Prompt] = load_prompts(config.data, self.tokenizer, config.rollout.max_prompt_tokens, images=self.images)
        self.labels = [encode_label(self.tokenizer, prompt.label, self.tokenizer.eos_token_id) for prompt in self.prompts]
        self.alphabet = label_alphabet(self.labels, {self.tokenizer.eos_token_id})
        self.rng = random.Random(config.seed)
        longest = max(len(prompt.ids) + len(label) for prompt, label in zip(self.prompts, self.labels, strict=True))
        if longest > config.train.max_tokens_per_microbatch:
            raise UserError(
                f"train.max_tokens_per_microbatch: {config.train.max_tokens_per_microbatch} cannot hold the longest prompt with its label, {longest} tokens"
            )

    def next(self) -> TrainBatch:
        sequences, masks, prompts = [], [], []
        for _ in range(self.config.sft.batch_size):
            index = int(self.rng.random() * len(self.prompts))
            prompts.append(self.prompts[index])
            prompt = prompts[-1].ids
            label = corrupt_labels(self.labels[index], self.config.sft.label_noise, self.alphabet, self.rng)
            sequences.append([*prompt, *label])
            masks.append([0] * len(prompt) + [1] * len(label))
        images = image_batch(prompts, [len(sequence) for sequence in sequences], self.images) if self.images is not None else None
        return TrainBatch.of(sequences, masks, images=images)
