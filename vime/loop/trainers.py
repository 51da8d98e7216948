"""All trainer ranks as one: every call goes to each of them, because they meet in collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vime.config.tree import Config
from vime.errors import RunError
from vime.loop.workers import Worker, call_all
from vime.training.batch import TrainBatch


class TrainerGroup:
    """The trainers of one run."""

    def __init__(self, workers: list[Worker], config: Config):
        self.workers, self.timeouts = workers, config.timeouts

    def train(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """The optimizer steps of one rollout; its metrics."""
        return self._reported(call_all(self.workers, "train", batch, step, timeout_s=self.timeouts.train_s, stage="train"))

    def sft_step(self, batch: TrainBatch, step: int) -> dict[str, float]:
        """One supervised optimizer step; its metrics."""
        return self._reported(call_all(self.workers, "sft_step", batch, step, timeout_s=self.timeouts.train_s, stage="train"))

    def logprobs(self, sequences: list[list[int]]) -> list[np.ndarray]:
        """Teacher-forced log-probs at temperature 1: float32[len − 1] for each sequence."""
        return next(out for out in call_all(self.workers, "logprobs", sequences, timeout_s=self.timeouts.train_s, stage="log-probs") if out is not None)

    def save(self, path: Path, extra: dict[str, Any]) -> None:
        """A checkpoint in `path`, complete or not there. With `checkpoint.async_save` it is there when `finish_save` says so."""
        call_all(self.workers, "save", str(path), extra, timeout_s=self.timeouts.checkpoint_s, stage="checkpoint")

    def finish_save(self, wait: bool) -> bool:
        """Whether no checkpoint is under way any more. Raises RunError(stage "checkpoint") when one could not be written."""
        return all(call_all(self.workers, "finish_save", wait, timeout_s=self.timeouts.checkpoint_s, stage="checkpoint"))

    def load(self, path: Path) -> dict[str, Any]:
        """Weights, optimizer and random state of a checkpoint; returns what `save` was given as `extra`."""
        return call_all(self.workers, "load", str(path), timeout_s=self.timeouts.checkpoint_s, stage="checkpoint")[0]

    def export_hf(self, path: Path) -> None:
        """A Hugging Face directory of the current weights."""
        call_all(self.workers, "export_hf", str(path), timeout_s=self.timeouts.checkpoint_s, stage="export")

    @staticmethod
    def _reported(results: list[dict[str, float] | None]) -> dict[str, float]:
        for metrics in results:
            if metrics is not None:
                return dict(metrics)
        raise RunError("train", "no trainer rank reported metrics")
