"""A trainer rank of the loop: Megatron's training, and the sending side of weight sync."""

from __future__ import annotations

from typing import Any

from vime.config.tree import Config
from vime.training.actor import TrainerActor
from vime.training.batch import TrainBatch
from vime.weights.sender import SenderMixin, WeightSender


class Trainer(SenderMixin, TrainerActor):
    """One trainer rank."""

    def start(self, config: Config, rank: int, world_size: int, address: str, port: int) -> dict[str, Any]:
        info = super().start(config, rank, world_size, address, port)
        self.weight_sender = WeightSender(self.platform, rank, self.shards)
        return info

    def train(self, batch: TrainBatch, step: int) -> dict[str, float] | None:
        metrics = super().train(batch, step)
        return metrics and metrics | {"perf/peak_mem_gib": self.platform.peak_memory_gib()}
