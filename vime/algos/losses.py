"""Per-token losses and the weights that add them up. Every function takes and returns tensors of the tokens of one packed micro-batch, axis T."""

from __future__ import annotations

from typing import Literal

import torch

from vime.algos.numerics import safe_exp
from vime.config.tree import AlgoConfig


def policy_loss(
    logprobs_T: torch.Tensor,
    old_logprobs_T: torch.Tensor,
    advantages_T: torch.Tensor,
    mask_T: torch.Tensor,
    algo: AlgoConfig,
    importance_T: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The clipped surrogate of PPO (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with separate bounds (Yu et al. 2025, arXiv:2503.14476) and the dual clip
    for negative advantages (Ye et al. 2020, arXiv:1912.09729, eq. 5).

    loss = −min(r·A, clip(r, 1 − clip_low, 1 + clip_high)·A), r = exp(logprobs − old_logprobs); with dual_clip c and A < 0 it is at most −c·A.
    `importance_T` multiplies it.
    Positions with mask 0 are excluded before the ratio is formed: whatever stands there (filler, NaN) changes neither loss nor gradient. Returns
    (loss_T, statistics:
    ratio_T, log_ratio_T, clipped_T bool: where the clip took the gradient away).
    """
    used_T = mask_T > 0
    zero = torch.zeros((), dtype=logprobs_T.dtype, device=logprobs_T.device)
    log_ratio_T = torch.where(used_T, logprobs_T, zero) - torch.where(used_T, old_logprobs_T, zero)
    ratio_T = safe_exp(log_ratio_T)
    advantages_T = torch.where(used_T, advantages_T, zero)
    plain_T = -ratio_T * advantages_T
    bounded_T = -ratio_T.clamp(1.0 - algo.clip_low, 1.0 + algo.clip_high) * advantages_T
    loss_T = torch.maximum(plain_T, bounded_T)
    clipped_T = (bounded_T > plain_T) & used_T
    if algo.dual_clip is not None:
        ceiling_T = -algo.dual_clip * advantages_T
        dual_T = (advantages_T < 0) & (loss_T > ceiling_T)
        loss_T = torch.where(dual_T, ceiling_T, loss_T)
        clipped_T = clipped_T | dual_T
    if importance_T is not None:
        loss_T = loss_T * torch.where(used_T, importance_T, zero)
    return loss_T, {"ratio_T": ratio_T.detach(), "log_ratio_T": log_ratio_T.detach(), "clipped_T": clipped_T}


def kl_penalty(logprobs_T: torch.Tensor, ref_logprobs_T: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """Estimators of KL(policy ‖ reference) from tokens sampled by the policy (Schulman, "Approximating KL divergence", 2020), with d = ref − log p:
    k1 = −d, k2 = d²/2, k3 = exp(d) − 1 − d. Finite, with the right sign of the gradient, at any finite d."""
    difference_T = ref_logprobs_T - logprobs_T
    if estimator == "k1":
        return -difference_T
    if estimator == "k2":
        return 0.5 * difference_T.square()
    return safe_exp(difference_T) - 1.0 - difference_T


def token_weights(
    sequence_tokens_T: torch.Tensor,
    n_tokens_global: int,
    n_sequences_global: int,
    aggregation: Literal["token", "sequence"],
) -> torch.Tensor:
    """Weights of tokens in the loss; their sum over the whole mini-batch (all micro-batches, all ranks) is 1, so that the loss is the same for every packing
    and layout.

    token: each of the `n_tokens_global` tokens counts the same. sequence: each of the `n_sequences_global` sequences with at least one token in the
    loss counts the same, and its tokens share its weight, wherever they are. `sequence_tokens_T` int64[T]: how many tokens of each token's sequence are in
    the loss. Returns float32[T].
    """
    if aggregation == "token":
        return torch.full_like(sequence_tokens_T, 1.0 / max(n_tokens_global, 1), dtype=torch.float32)
    return 1.0 / (sequence_tokens_T.to(torch.float32) * max(n_sequences_global, 1))
