"""A trainer rank of the loop: Megatron's training, and the sending side of weight sync."""

from __future__ import annotations

from typing import Any

from vime.config.tree import Config
from vime.training.actor import TrainerActor
from vime.training.batch import TrainBatch
from vime.training.residency import Residency, What
from vime.weights.sender import SenderMixin, Sent, WeightSender


class Trainer(SenderMixin, TrainerActor):
    """One trainer rank."""

    def start(self, config: Config, rank: int, world_size: int, address: str, port: int) -> dict[str, Any]:
        info = super().start(config, rank, world_size, address, port)
        draft = self.trained.table.draft
        self.weight_sender = WeightSender(self.platform, rank, lambda: [shard for shard in self.shards() if shard.hf_name not in draft])
        if self.trained.mtp:
            self.draft_sender = WeightSender(self.platform, rank, lambda: [shard for shard in self.shards() if shard.hf_name in draft])
        self.residency = Residency(self.trained, self.platform, () if self.reference is None else (self.reference,))
        return info

    def park(self, what: What) -> int:
        """Give device memory to a colocated engine; bytes parked."""
        return self.residency.park(what)

    def restore(self) -> None:
        """Take the memory back."""
        self.residency.restore()

    def load(self, path: str) -> dict[str, Any]:
        self.residency.require("all", "checkpoint")
        extra = super().load(path)
        self.residency.replaced()
        return extra

    def export_hf(self, path: str) -> None:
        self.residency.require("optimizer", "export")
        super().export_hf(path)

    def save(self, path: str, extra: dict[str, Any]) -> None:
        self.residency.require("all", "checkpoint")
        super().save(path, extra)

    def weights_send(self, version: int, base_version: int | None = None, draft: bool = False) -> Sent:
        self.residency.require("optimizer", "weight sync")
        return super().weights_send(version, base_version, draft)

    def train(self, batch: TrainBatch, step: int) -> dict[str, float] | None:
        self.residency.require("all", "train")
        metrics = super().train(batch, step)
        return metrics and metrics | {"perf/peak_mem_gib": self.platform.peak_memory_gib()}
