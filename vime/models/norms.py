"""Norms that Megatron-Core has only with TransformerEngine, in plain torch, built as Megatron builds norms."""

from __future__ import annotations

from typing import Any

import torch


class PlainRMSNorm(torch.nn.Module):
    """x / rms(x) · w, in float32."""

    offset = 0.0

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **kwargs: Any):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.full((hidden_size,), 1.0 - self.offset))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]  # Megatron sums its gradient over tensor-parallel ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Last axis normalised; the dtype stays."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * (self.offset + self.weight.float())).type_as(x)


class ZeroCentredRMSNorm(PlainRMSNorm):
    """x / rms(x) · (1 + w): weights start, and decay, towards 0."""

    offset = 1.0


class HeadNormWeight(torch.nn.Module):
    """The weight of gated delta net's output norm, whose ranks see different heads: the module that owns it sums its gradient, sequence-parallel or not."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **kwargs: Any):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
