"""Forward passes over packed micro-batches: log-probs and entropies of the tokens in the loss, with or without a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vime.algos.logprobs import vocab_parallel_logprobs_entropy
from vime.training.batch import MicroBatch
from vime.training.model import Trained
from vime.training.mtp import WANTED, DraftLoss
from vime.training.rows import move_rows

# (micro-batch, logprobs_N, entropy_N) -> the micro-batch's part of the loss, a scalar whose sum over all micro-batches and ranks is the loss
Objective = Callable[[MicroBatch, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Scores:
    """Of one micro-batch, for the N tokens in the loss, float32, no gradient."""

    micro: MicroBatch
    logprobs_N: torch.Tensor
    entropy_N: torch.Tensor


class Runner:
    """Runs Megatron's schedule (with or without a pipeline) for one rank."""

    def __init__(self, trained: Trained):
        from megatron.core import parallel_state
        from megatron.core.pipeline_parallel import get_forward_backward_func

        self.trained = trained
        self.schedule = get_forward_backward_func()
        self.tp_group = parallel_state.get_tensor_model_parallel_group() if trained.layout.tp_size > 1 else None
        self.last_stage = trained.layout.pp == trained.layout.pp_size - 1

    @torch.no_grad()
    def score(self, micros: Sequence[MicroBatch], model: torch.nn.Module | None = None) -> list[Scores]:
        """Log-probs and entropies without a gradient, of `model` or else the policy; empty on the stages before the last."""

        def collect(micro: MicroBatch, logits: torch.Tensor) -> Scores:
            return Scores(micro, *self._logprobs(micro, logits))

        return self._run(micros, collect, model or self.trained.ddp, forward_only=True)

    def backward(self, micros: Sequence[MicroBatch], objective: Objective, draft: DraftLoss | None = None) -> None:
        """Forward and backward of all micro-batches, with the draft layers' loss if there is one; gradients are left summed over micro-batches and
        data-parallel ranks."""
        from megatron.core.distributed import finalize_model_grads

        self.trained.ddp.zero_grad_buffer()
        self.trained.optimizer.zero_grad()

        def loss(micro: MicroBatch, output: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
            logits, drafts = (output, ()) if draft is None else output
            value = objective(micro, *self._logprobs(micro, logits))
            if draft is not None:
                logprobs = [self._picked(found, ahead.rows_M, ahead.targets_M, micro.temperature)[0] for found, ahead in zip(drafts, micro.ahead, strict=True)]
                value = value + draft(micro, logprobs)
            return value, torch.zeros((), dtype=torch.int, device=logits.device), {}

        self._run(micros, loss, self.trained.ddp, forward_only=False, draft=draft is not None)
        finalize_model_grads([self.trained.ddp])

    def _run(self, micros: Sequence[MicroBatch], finish: Callable[..., Any], model: torch.nn.Module, forward_only: bool, draft: bool = False) -> list[Any]:
        def step(iterator: Any, model: torch.nn.Module) -> tuple[torch.Tensor, Callable[..., Any]]:
            micro = next(iterator)
            output = model(**inputs(micro, draft=draft))
            return output, lambda logits, non_loss_data=False: finish(micro, logits)

        return self.schedule(
            forward_step_func=step,
            data_iterator=iter(micros),
            model=[model],
            num_microbatches=len(micros),
            seq_length=max(len(micro.ids_T) for micro in micros),  # not used where shapes vary
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _logprobs(self, micro: MicroBatch, logits_1TV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._picked(logits_1TV, micro.rows_N, micro.targets_N, micro.temperature)

    def _picked(self, logits_1TV: torch.Tensor, rows_N: torch.Tensor, targets_N: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the targets and entropies at these rows."""
        rows_NV = move_rows(logits_1TV[0], rows_N, None, len(rows_N))
        if not len(rows_N):  # an empty micro-batch still takes part in the backward pass of its pipeline
            zero = rows_NV.sum(dim=-1).float()
            return zero, zero
        return vocab_parallel_logprobs_entropy(rows_NV, targets_N, temperature, self.tp_group, self.trained.shape.vocab_size)


def inputs(micro: MicroBatch, *, draft: bool = False) -> dict[str, Any]:
    """The keyword arguments of a model's forward pass over the pack: ids [1, T], positions [1, T] or, with images, [3, 1, T]. `draft`: the pass wants the
    draft layers' logits too."""
    seen = {} if micro.images is None else {"images": micro.images}
    pack = packed(micro)
    if draft:
        setattr(pack, WANTED, True)
    return {"input_ids": micro.ids_T[None], "position_ids": micro.positions_T.unsqueeze(-2), "attention_mask": None, "packed_seq_params": pack, **seen}


def packed(micro: MicroBatch) -> Any:
    """Megatron's description of the pack."""
    from megatron.core.packed_seq_params import PackedSeqParams

    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=micro.cu_seqlens, cu_seqlens_kv=micro.cu_seqlens, max_seqlen_q=micro.longest, max_seqlen_kv=micro.longest
    )
