"""Correction for tokens sampled by an engine whose probabilities differ from the trainer's."""

from __future__ import annotations

import torch

from vime.algos.numerics import safe_exp


def truncated_importance(logprobs_T: torch.Tensor, engine_logprobs_T: torch.Tensor, cap: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Truncated importance sampling: w = min(π_trainer/π_engine, cap) per token (Ionides 2008; for RL with an inference engine, Yao et al. 2025).

    Both inputs float[T], natural log. Returns (weights_T without gradient, capped_T bool: where the cap bound).
    """
    ratio_T = safe_exp(logprobs_T.detach() - engine_logprobs_T)
    return ratio_T.clamp(max=cap), ratio_T > cap
