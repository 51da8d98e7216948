"""The trainer's weights as shards of Hugging Face tensors, from any parallel layout. Gathering whole tensors is one consumer; point-to-point transports are
others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from vime.models.base import Layout, Slices, WeightTable, local_weights


@dataclass(frozen=True)
class Shard:
    """One slice of a Hugging Face tensor as this rank holds it.

    `tensor` has the slice's shape and the parameter's dtype; it is a view into the parameter where the layout allows, else a copy. `owner_rank` is the lowest
    global rank with the same slice: a consumer that wants each slice once takes those whose owner is the rank itself.
    """

    hf_name: str
    global_shape: tuple[int, ...]
    slice: Slices
    owner_rank: int
    tensor: torch.Tensor
    float32: bool = False  # sent in float32 whatever the engines' dtype is


@dataclass(frozen=True)
class ShardInfo:
    """A shard without its data, as other ranks need to know it."""

    hf_name: str
    global_shape: tuple[int, ...]
    slice: tuple[tuple[int, int], ...]
    owner_rank: int
    dtype: torch.dtype


def shards(model_chunks: Sequence[torch.nn.Module], table: WeightTable, layout: Layout) -> Iterator[Shard]:
    """This rank's shards, in the order of its parameters. One model chunk a pipeline stage (no interleaved schedule). Nothing is copied to a peer here."""
    (model,) = model_chunks
    parameters = dict(local_weights(_bare(model)))
    for name, piece in table.local(parameters, layout):
        if not piece.copy:
            data = piece.view(parameters[name].detach()).reshape(piece.shape)
            yield Shard(piece.hf_name, piece.hf_shape, piece.hf_slice, piece.owner_rank(layout), data, piece.hf_name in table.float32)


def gather_plan(local: Iterable[Shard], order: Sequence[str]) -> dict[str, list[ShardInfo]]:
    """Which ranks own which slices of each tensor, the same on every rank, tensors in `order`. A collective where torch.distributed is up.

    Raises ValueError when the shards do not cover every tensor of `order` exactly once.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    mine = [
        ShardInfo(s.hf_name, s.global_shape, tuple((part.start, part.stop) for part in s.slice), s.owner_rank, s.tensor.dtype)
        for s in local
        if s.owner_rank == rank
    ]
    everyone: list[list[ShardInfo]] = [mine]
    if dist.is_initialized() and dist.get_world_size() > 1:
        everyone = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, mine)
    plan: dict[str, list[ShardInfo]] = {name: [] for name in order}
    for info in sorted((info for part in everyone for info in part), key=lambda info: info.slice):
        if info.hf_name not in plan:
            raise ValueError(f"the trainer holds {info.hf_name}, which the model's weight table does not list")
        plan[info.hf_name].append(info)
    for name, infos in plan.items():
        _check_cover(name, infos)
    return plan


def whole_tensors(local: Iterable[Shard], plan: dict[str, list[ShardInfo]], destination: int = 0) -> Iterator[tuple[str, torch.Tensor | None]]:
    """(name, tensor) of each tensor of the plan in turn; the tensor on rank `destination`, None on the others. A collective; holds one whole tensor at a
    time."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    held = {(s.hf_name, tuple((part.start, part.stop) for part in s.slice)): s.tensor for s in local if s.owner_rank == rank}
    for name, infos in plan.items():
        if rank != destination:
            for info in infos:
                if info.owner_rank == rank:
                    dist.send(held[name, info.slice].contiguous(), dst=destination)
            yield name, None
            continue
        if len(infos) == 1 and infos[0].owner_rank == rank:
            yield name, held[name, infos[0].slice]
            continue
        device = next(iter(held.values())).device if held else None
        tensor = torch.empty(infos[0].global_shape, dtype=infos[0].dtype, device=device)
        for info in infos:
            where = tuple(slice(*part) for part in info.slice)
            if info.owner_rank == rank:
                tensor[where] = held[name, info.slice]
            else:
                part = torch.empty([stop - start for start, stop in info.slice], dtype=info.dtype, device=device)
                dist.recv(part, src=info.owner_rank)
                tensor[where] = part
        yield name, tensor


def _check_cover(name: str, infos: list[ShardInfo]) -> None:
    """Slices of one tensor are disjoint blocks along one axis, so equal element counts and distinct slices mean an exact cover."""
    if not infos:
        raise ValueError(f"no rank holds {name}")
    total = torch.Size(infos[0].global_shape).numel()
    held = sum(torch.Size([stop - start for start, stop in info.slice]).numel() for info in infos)
    if held != total or len({info.slice for info in infos}) != len(infos):
        raise ValueError(f"{name}: the ranks' slices hold {held} of {total} elements: {[info.slice for info in infos]}")


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside Megatron's DDP and mixed-precision wrappers."""
    while hasattr(model, "module") and isinstance(model.module, torch.nn.Module):
        model = model.module
    return model
