"""exp that cannot overflow."""

from __future__ import annotations

import torch

LOG_RATIO_BOUND = 20.0  # e^20 ≈ 5e8: far outside any ratio that trains, far inside float32


def safe_exp(x: torch.Tensor, bound: float = LOG_RATIO_BOUND) -> torch.Tensor:
    """exp(x) up to `bound`, above it the tangent at `bound`: value and gradient stay finite and keep their sign and order. NaN stays NaN."""
    return torch.exp(x.clamp(max=bound)) * (1.0 + (x - bound).clamp(min=0.0))
