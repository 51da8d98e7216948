"""Log-probabilities and entropies of a vocabulary that is split over tensor-parallel ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def _reduce(tensor: torch.Tensor, op: Any, group: Any) -> torch.Tensor:
    if group is not None and dist.get_world_size(group) > 1:
        dist.all_reduce(tensor, op=op, group=group)
    return tensor


class _LogprobsEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_TV: torch.Tensor, targets_T: torch.Tensor, temperature: float, group: Any, vocab_size: int | None) -> Any:
        x_TV = logits_TV.float() / temperature
        width = x_TV.shape[-1]
        first = dist.get_rank(group) * width if group is not None and dist.get_world_size(group) > 1 else 0
        if vocab_size is not None and first + width > vocab_size:  # columns that only pad the vocabulary have no probability
            x_TV[:, max(vocab_size - first, 0) :] = torch.finfo(torch.float32).min
        top_T1 = _reduce(x_TV.max(dim=-1, keepdim=True).values, dist.ReduceOp.MAX, group)
        x_TV = x_TV - top_T1
        exp_TV = x_TV.exp()
        sum_T1 = _reduce(exp_TV.sum(dim=-1, keepdim=True), dist.ReduceOp.SUM, group)
        p_TV = exp_TV / sum_T1
        local_T = targets_T - first
        mine_T = (local_T >= 0) & (local_T < width)
        index_T = local_T.clamp(0, width - 1)
        picked_T = torch.where(mine_T, x_TV.gather(-1, index_T[:, None])[:, 0], torch.zeros((), dtype=x_TV.dtype, device=x_TV.device))
        picked_T = _reduce(picked_T, dist.ReduceOp.SUM, group)
        x_TV = torch.where(p_TV > 0, x_TV, torch.zeros((), dtype=x_TV.dtype, device=x_TV.device))  # 0·(−inf) must count 0
        mean_T1 = _reduce((p_TV * x_TV).sum(dim=-1, keepdim=True), dist.ReduceOp.SUM, group)
        log_sum_T = sum_T1[:, 0].log()
        ctx.save_for_backward(p_TV, x_TV, mean_T1, index_T, mine_T)
        ctx.temperature, ctx.dtype = temperature, logits_TV.dtype
        return picked_T - log_sum_T, log_sum_T - mean_T1[:, 0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_logprobs_T, grad_entropy_T = grads
        p_TV, x_TV, mean_T1, index_T, mine_T = ctx.saved_tensors
        grad_TV = -p_TV * grad_logprobs_T[:, None]
        if grad_entropy_T is not None:
            grad_TV = grad_TV - grad_entropy_T[:, None] * p_TV * (x_TV - mean_T1)
        grad_TV.scatter_add_(-1, index_T[:, None], (grad_logprobs_T * mine_T)[:, None])
        return (grad_TV / ctx.temperature).to(ctx.dtype), None, None, None, None


def vocab_parallel_logprobs_entropy(
    logits_TV: torch.Tensor,
    targets_T: torch.Tensor,
    temperature: float = 1.0,
    tp_group: Any = None,
    vocab_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(target) and the entropy of p = softmax(logits / temperature), in nats.

    `logits_TV` [T, V / tp] of any float dtype, this rank's slice of the vocabulary; `targets_T` int64[T], global ids; `vocab_size` the true size
    where the last slice is padded.
    Computed in float32; returns (logprobs_T, entropy_T), both float32[T], both differentiable; the same on every rank of `tp_group`.
    d log p/dx_j = 1[j = target] − p_j;  dH/dx_j = −p_j (x_j − Σ p x).
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    return _LogprobsEntropy.apply(logits_TV, targets_T, temperature, tp_group, vocab_size)
