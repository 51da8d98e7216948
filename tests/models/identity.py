"""Load, then export, over every rank of a layout."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.simulated import Rank, simulated, world_size
from vime.models.base import local_weights
from vime.models.hf_io import copy_into
from vime.models.registry import family_for
from vime.weights.exporter import shards


def tensors_of(hf_config: dict[str, Any], *, mtp: bool = False) -> dict[str, torch.Tensor]:
    """A checkpoint whose every element is a number of its own; aliases hold what they stand for."""
    table = family_for(hf_config).weight_table(hf_config, mtp=mtp)
    out, first = {}, 1
    for name, shape in table.shapes.items():
        count = torch.Size(shape).numel()
        out[name] = torch.arange(first, first + count, dtype=torch.int32).view(torch.float32).view(shape)  # bit patterns: every one differs
        first += count
    return out | {alias: out[name] for alias, name in table.aliases.items() if alias in out}


def fill(rank: Rank, tensors: dict[str, torch.Tensor]) -> None:
    """As `load_hf`, from tensors in memory. Raises AssertionError where an element of the model stays unset (padding of the vocabulary aside)."""
    for name, weight in local_weights(rank.model):
        with torch.no_grad():
            weight.fill_(float("nan"))
            for piece in rank.table.pieces(name, rank.layout):
                if not piece.alias:
                    copy_into(weight, piece, tensors[piece.hf_name][piece.hf_slice])
        missed = torch.isnan(weight).flatten(1).all(1) if weight.dim() > 1 else torch.isnan(weight)
        allowed = len(missed) if "word_embeddings" in name or "output_layer" in name else 0
        assert int(missed.sum()) <= allowed and (allowed or not torch.isnan(weight).any()), f"{name}: {int(missed.sum())} rows not loaded"


def check_identity(hf_config: dict[str, Any], parallel: dict[str, Any], *, mtp: bool = False, megatron: dict[str, Any] | None = None) -> None:
    """Every element of every tensor is held, exported exactly once by its owner, and equal bit for bit."""
    tensors = tensors_of(hf_config, mtp=mtp)
    out = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    times = {name: torch.zeros(tensor.shape, dtype=torch.int8) for name, tensor in tensors.items()}
    for number in range(world_size(parallel)):
        with simulated(hf_config, parallel, number, mtp=mtp, megatron=megatron) as rank:
            fill(rank, tensors)
            for shard in shards([rank.model], rank.table, rank.layout):
                assert torch.equal(bits(shard.tensor), bits(tensors[shard.hf_name][shard.slice])), shard.hf_name
                assert 0 <= shard.owner_rank < world_size(parallel)
                if shard.owner_rank == number:
                    out[shard.hf_name][shard.slice] = shard.tensor
                    times[shard.hf_name][shard.slice] += 1
    for name, tensor in tensors.items():
        assert (times[name] == 1).all(), f"{name}: elements exported {times[name].unique().tolist()} times"
        assert torch.equal(bits(out[name]), bits(tensor)), name


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.int32)
