"""A model directory in vLLM and in vime's trainer: do both give the same log-probs, as loaded and after a weight sync of a large step?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.models.megatron import SEQUENCES, config_of
from tests.rollout.child import EngineChild
from tests.rollout.child import config_of as engine_config
from tests.training.ranks import free_port
from vime.data import load_image_processor
from vime.loop.trainer_actor import Trainer
from vime.models.base import local_weights
from vime.platforms.cpu import CpuPlatform
from vime.weights.handles import LocalWorker, gather_local
from vime.weights.proof import with_picture
from vime.weights.session import WeightSync

SCORED = [sequence for sequence in SEQUENCES if len(sequence) > 1]


@dataclass(frozen=True)
class EngineGaps:
    """|Δ log-prob| between trainer and engine: mean and largest over the tokens; `moved`: the trainer's own mean change by the step."""

    loaded_mean: float
    loaded_max: float
    synced_mean: float
    synced_max: float
    moved: float
    held: str  # which proof the sync ran


def compare(directory: Path, dtype: str = "float32") -> EngineGaps:
    """Starts vLLM in a process of its own, the trainer in this one, both in `dtype`. A model that sees is shown a picture too. Raises whatever stops either."""
    config = engine_config(directory, dtype, rollout={"max_prompt_tokens": 32, "max_response_tokens": 16})
    for_trainer, for_engine = questions(directory)
    child, trainer = EngineChild(config, weights_version=0), Trainer()
    try:
        trainer.start(config_of(directory, model={"dtype": dtype}), 0, 1, "127.0.0.1", free_port())
        before, loaded = trainer.logprobs(*for_trainer), scores(child, for_engine)
        sync = WeightSync([LocalWorker(trainer, "trainer 0")], [child], config, CpuPlatform(), gather=gather_local)
        large_step(trainer.trained.model)
        report = sync.push(1)
        after, synced = trainer.logprobs(*for_trainer), scores(child, for_engine)
        sync.close()
        assert before is not None and after is not None and report.held_check is not None
        first, second = gaps(before, loaded), gaps(after, synced)
        moved = gaps(before, after)
        return EngineGaps(first.mean(), first.max(), second.mean(), second.max(), moved.mean(), report.held_check.method)
    finally:
        child.close()
        trainer.stop()


def questions(directory: Path) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments of `logprobs` for the trainer and for the engine: sequences, and for a model that sees pictures in some of them."""
    processor = load_image_processor(directory)
    if processor is None:
        return (SCORED,), (SCORED,)
    sequences, images, batch = with_picture([list(sequence) for sequence in SCORED], processor)
    return (sequences, batch), (sequences, images)


def scores(child: EngineChild, arguments: tuple[Any, ...]) -> list[np.ndarray]:
    return child.call("logprobs", *arguments).result(60, "test")


def gaps(ours: list[np.ndarray], theirs: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.abs(one.astype(np.float64) - other) for one, other in zip(ours, theirs, strict=True)])


@torch.no_grad()
def large_step(model: torch.nn.Module, size: float = 0.03) -> None:
    """Moves every weight, so that one that is not sent shows."""
    generator = torch.Generator().manual_seed(3)
    for _, weight in local_weights(model):
        weight.add_(torch.randn(weight.shape, generator=generator) * size)
