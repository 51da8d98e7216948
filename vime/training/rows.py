"""Moving rows of a tensor, with a gradient that moves them back."""

from __future__ import annotations

from typing import Any

import torch


def move_rows(x: torch.Tensor, sources: torch.Tensor | None, targets: torch.Tensor | None, size: int) -> torch.Tensor:
    """out[targets] = x[sources] along the first axis, zeros elsewhere, [size, …]; None stands for 0, 1, 2, …. No index occurs twice: rows are moved, never
    added, so the gradient is the same move backwards (autograd's own would be a slow scatter-add)."""
    return _Move.apply(x, sources, targets, size)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sources: torch.Tensor | None, targets: torch.Tensor | None, size: int) -> torch.Tensor:
        ctx.save_for_backward(*[index for index in (sources, targets) if index is not None])
        ctx.has, ctx.rows = (sources is not None, targets is not None), x.shape[0]
        return _move(x, sources, targets, size)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        saved = list(ctx.saved_tensors)
        sources, targets = (saved.pop(0) if there else None for there in ctx.has)
        return _move(grad, targets, sources, ctx.rows), None, None, None


def _move(x: torch.Tensor, sources: torch.Tensor | None, targets: torch.Tensor | None, size: int) -> torch.Tensor:
    picked = x if sources is None else x.index_select(0, sources)
    return picked if targets is None else x.new_zeros(size, *x.shape[1:]).index_copy_(0, targets, picked)
