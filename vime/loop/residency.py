"""Whose turn it is on a colocated device: the engine sleeps while the trainer works, the trainer's memory is parked while the engine works.

Order of a step: generate → engines sleep, trainers come back → train → optimizer and gradients are parked, engines' weights wake → sync → engines' caches
wake → weights are parked → generate. Where nothing is colocated, or the platform cannot (a missing capability), every call does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from vime.config.tree import Config
from vime.errors import UserError
from vime.loop.workers import Worker, call_all
from vime.platforms.base import Platform

STAGE = "memory"
KEEP_WEIGHTS, DROP_WEIGHTS = 1, 2  # vLLM's sleep levels: weights to host memory, or thrown away because a sync replaces them


class MemoryTurns:
    """The choreography of one run."""

    def __init__(self, trainers: Sequence[Worker], engines: Sequence[Worker], config: Config, platform: Platform):
        self.trainers, self.engines, self.config = list(trainers), list(engines), config
        self.active = active(config, platform)

    def to_training(self, *, keep_weights: bool = False) -> None:
        """Engines sleep, trainers are whole. `keep_weights`: no sync follows, so the engines' weights must survive."""
        if self.active:
            self._all(self.engines, "sleep", KEEP_WEIGHTS if keep_weights else DROP_WEIGHTS)
            self._all(self.trainers, "restore")

    def to_sync(self) -> None:
        """Both sides' weights are there, and nothing else. Also for a sync out of turn, when an engine was restarted in a rollout."""
        if self.active:
            self._all(self.trainers, "park", "optimizer")
            self._all(self.engines, "wake", ["weights"])

    def synced(self) -> None:
        """Every engine committed: its caches come back, so that it can score and generate."""
        if self.active:
            self._all(self.engines, "wake", ["kv_cache"])

    def to_rollout(self) -> None:
        if self.active:
            self._all(self.trainers, "park", "all")

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Trainers are whole inside (a checkpoint between two steps); the engines keep their weights."""
        self.to_training(keep_weights=True)
        yield
        self.to_sync()
        self.synced()
        self.to_rollout()

    def rejoin(self, index: int, engine: Worker) -> None:
        """A restarted engine is awake."""
        self.engines[index] = engine

    def _all(self, workers: Sequence[Worker], method: str, *args: Any) -> None:
        call_all(workers, method, *args, timeout_s=self.config.timeouts.train_s, stage=STAGE)


def active(config: Config, platform: Platform) -> bool:
    """Whether turns are taken. Raises UserError for `always` where nothing is shared."""
    policy = config.placement.release_memory
    if policy == "always" and config.placement.mode != "colocate":
        raise UserError("placement.release_memory: always, but trainers and engines have devices of their own (placement.mode: non-colocate): remove it")
    return config.placement.mode == "colocate" and (policy == "always" or (policy == "auto" and "sleep" in platform.capabilities))
