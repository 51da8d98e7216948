"""Random weights that do not depend on the parallel layout."""

from __future__ import annotations

import zlib

import torch

from vime.models.base import Layout, WeightTable, local_weights
from vime.models.hf_io import copy_into


@torch.no_grad()
def random_init(model: torch.nn.Module, table: WeightTable, layout: Layout, seed: int, std: float) -> None:
    """Matrices and biases from N(0, std²), norm weights 1. Hugging Face starts biases at 0, where a forgotten one would not show. Each tensor has
    a generator of its own, seeded by `seed` and its name, so every layout gets the same model; one whole tensor is in memory at a time."""
    for name, parameter in local_weights(model):
        parameter.zero_()
        for piece in table.pieces(name, layout):
            if not piece.alias:
                copy_into(parameter, piece, drawn(piece.hf_name, piece.hf_shape, seed, std)[piece.hf_slice])


def drawn(hf_name: str, shape: tuple[int, ...], seed: int, std: float) -> torch.Tensor:
    """The whole random tensor, float32."""
    if len(shape) == 1 and "bias" not in hf_name:
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{hf_name}".encode()))
    return torch.randn(shape, generator=generator) * std
