"""Logits of vime's trainer for a model directory, in this process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.training.ranks import configured, one_rank

SEQUENCES = [[5, 9, 12, 33, 7, 50, 2, 8, 61, 1], [3, 3, 60, 41, 22], list(range(3, 43)), [11]]


def config_of(directory: Path, **changes: Any) -> Any:
    return configured(str(directory), **{**changes, "model": {"random_init_seed": None, **changes.get("model", {})}})


@torch.no_grad()
def logits_of(actor: Any, sequences: Sequence[Sequence[int]] = SEQUENCES) -> list[torch.Tensor]:
    """float32[len, V] of each sequence, from one packed micro-batch."""
    from vime.training.batch import TrainBatch, pack
    from vime.training.forward import packed

    batch = TrainBatch.of(sequences, [[0] + [1] * (len(sequence) - 1) for sequence in sequences])
    micro = pack(batch, list(range(batch.size)), torch.device("cpu"))
    output = actor.trained.model(input_ids=micro.ids_T[None], position_ids=micro.positions_T[None], attention_mask=None, packed_seq_params=packed(micro))
    vocabulary = actor.trained.shape.vocab_size
    bounds = np.cumsum([0, *(len(sequence) for sequence in sequences)])
    return [output[0, start:stop, :vocabulary] for start, stop in itertools.pairwise(bounds)]


def gap(directory: Path, expected: Sequence[torch.Tensor], sequences: Sequence[Sequence[int]] = SEQUENCES, **changes: Any) -> float:
    """Largest difference between vime's logits and the expected ones."""
    with one_rank(config_of(directory, **changes)) as actor:
        return max(float((ours - theirs).abs().max()) for ours, theirs in zip(logits_of(actor, sequences), expected, strict=True))
