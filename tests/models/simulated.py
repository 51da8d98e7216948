"""The ranks of a layout one after the other in this process: real Megatron modules over torch's fake process groups, so any world size costs no processes."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tests.training.ranks import configured
from vime.config.check import check
from vime.errors import UserError
from vime.models.base import Layout, WeightTable
from vime.models.registry import family_for


@dataclass(frozen=True)
class Rank:
    """One rank's model, weights not set, and where it stands."""

    model: torch.nn.Module
    layout: Layout
    table: WeightTable


def world_size(parallel: dict[str, Any]) -> int:
    sizes = {"tensor": 1, "pipeline": 1, "context": 1, "data": 1, **parallel}
    return int(sizes["tensor"] * sizes["pipeline"] * sizes["context"] * sizes["data"])


@contextlib.contextmanager
def world(parallel: dict[str, Any], rank: int) -> Iterator[Layout]:
    """Megatron's parallel state of one rank; collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from vime.platforms.registry import get

    get("cpu").bootstrap_megatron()
    from megatron.core import parallel_state, tensor_parallel

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size(parallel))
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.get("tensor", 1),
            pipeline_model_parallel_size=parallel.get("pipeline", 1),
            context_parallel_size=parallel.get("context", 1),
            expert_model_parallel_size=parallel.get("expert", 1),
            expert_tensor_parallel_size=parallel.get("expert_tensor", 1),
            create_gloo_process_groups=False,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        yield Layout(
            tp=parallel_state.get_tensor_model_parallel_rank(),
            tp_size=parallel.get("tensor", 1),
            pp=parallel_state.get_pipeline_model_parallel_rank(),
            pp_size=parallel.get("pipeline", 1),
            dp=parallel_state.get_data_parallel_rank(),
            dp_size=parallel_state.get_data_parallel_world_size(),
            cp=parallel_state.get_context_parallel_rank(),
            cp_size=parallel.get("context", 1),
            ep_size=parallel.get("expert", 1),
            etp_size=parallel.get("expert_tensor", 1),
        )
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


@contextlib.contextmanager
def simulated(
    hf_config: dict[str, Any], parallel: dict[str, Any], rank: int, *, mtp: bool = False, megatron: dict[str, Any] | None = None, device: str = "cpu"
) -> Iterator[Rank]:
    """One rank of a layout."""
    from vime.training.model import _check_marks, bare_model, transformer_config

    family = family_for(hf_config)
    config = configured("unused", parallel=parallel, megatron={"model": megatron or {}})
    if problems := check(config):
        raise UserError("\n".join(": ".join(problem) for problem in problems))
    with world(parallel, rank) as layout:
        from megatron.core import parallel_state
        from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

        assert (layout.ep, layout.etp) == (parallel_state.get_expert_model_parallel_rank(), parallel_state.get_expert_tensor_parallel_rank())
        assert layout.rank() == rank
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformer = transformer_config(config, family, hf_config, "cpu", mtp=mtp)
            layout = dataclasses.replace(layout, layer_offset=get_transformer_layer_offset(transformer))
            model = bare_model(family, hf_config, transformer, family.shape(hf_config), layout, torch.device(device), mtp=mtp)
        table = family.weight_table(hf_config, mtp=mtp)
        _check_marks(model, table, layout)
        yield Rank(model, layout, table)
