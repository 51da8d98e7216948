"""The process groups of a trainer rank."""

from __future__ import annotations

import logging
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from vime.config.tree import Config
from vime.errors import RunError
from vime.models.base import Layout


def initialise(config: Config, platform: Any, rank: int, world_size: int, address: str, port: int) -> Layout:
    """torch.distributed over the platform's backend, Megatron's parallel state, the platform's Megatron bring-up, and the random states. Returns where this
    rank stands."""
    for noisy in ("megatron.core", "torch.distributed.checkpoint"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron warns of every optional package that is absent
        platform.bootstrap_megatron()
        from megatron.core import parallel_state, tensor_parallel
    parallel = config.parallel
    timeout = timedelta(seconds=config.timeouts.train_s)
    try:
        dist.init_process_group(platform.collective_backend, init_method=f"tcp://{address}:{port}", rank=rank, world_size=world_size, timeout=timeout)
    except (RuntimeError, ValueError) as error:  # torch names neither address nor rank
        raise RunError("trainer start", f"rank {rank} of {world_size} could not join tcp://{address}:{port}: {error}") from error
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
        create_gloo_process_groups=False,
    )
    torch.manual_seed(config.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(config.seed)
    layout = Layout(
        tp=parallel_state.get_tensor_model_parallel_rank(),
        tp_size=parallel.tensor,
        cp=parallel_state.get_context_parallel_rank(),
        cp_size=parallel.context,
        pp=parallel_state.get_pipeline_model_parallel_rank(),
        pp_size=parallel.pipeline,
        dp=parallel_state.get_data_parallel_rank(),
        dp_size=parallel_state.get_data_parallel_world_size(),
        ep_size=parallel.expert,
        etp_size=parallel.expert_tensor,
    )
    if layout.rank() != rank:  # Layout counts ranks itself; the two must agree or weights would be sent from the wrong place
        raise RunError("trainer start", f"Megatron puts rank {rank} at {layout}, which numbers it {layout.rank()}")
    return layout


def shut_down() -> None:
    """Undo `initialise` in this process."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
