"""Modules that Megatron-Core has no local form of, with the interface its layers expect."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.multi_latent_attention import MLASelfAttention
from megatron.core.transformer.spec_utils import ModuleSpec

from vime.errors import UserError


class FullNorm(torch.nn.Module):
    """RMSNorm over all heads of a query or key together (MiniMax-M2): Megatron norms each head. Heads and weight are split over tensor-parallel ranks, the
    mean square is over all of them."""

    def __init__(self, hidden_size: int, config: Any, heads: int, eps: float = 1e-6):
        """`hidden_size`: of one head; `heads` of the whole model."""
        super().__init__()
        self.ranks = parallel_state.get_tensor_model_parallel_world_size()
        self.eps, self.width = eps, hidden_size * heads
        self.weight = torch.nn.Parameter(torch.ones(self.width // self.ranks))
        set_tensor_model_parallel_attributes(self.weight, self.ranks > 1, 0, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, heads of this rank, D] → the same shape."""
        flat = x.flatten(-2).float()
        squares = flat.square().sum(-1, keepdim=True)
        if self.ranks > 1:  # the sum of all ranks, and in the backward pass the sum of their gradients
            squares = tensor_parallel.copy_to_tensor_model_parallel_region(tensor_parallel.reduce_from_tensor_model_parallel_region(squares))
        return (self.weight * (flat * torch.rsqrt(squares / self.width + self.eps)).to(x.dtype)).view_as(x)


class LatentAttention(MLASelfAttention):
    """Megatron's latent attention with a right gradient under tensor parallelism.

    Every rank's heads read the same rotary part of the keys, so its gradient is the sum over ranks. Megatron's layer gathers the split down-projection in a
    way that gives each rank the gradient of its own heads alone (with TransformerEngine the projection is whole on every rank, and another branch is taken).
    Gathered here, and cut along the sequence, that other branch does the sum. It needs sequence parallelism, as routed experts do.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.config.tensor_model_parallel_size > 1:
            if not self.config.sequence_parallel:
                raise UserError("parallel.tensor with latent attention needs parallel.sequence_parallel: true")
            self.linear_kv_down_proj.register_forward_hook(_gathered_and_cut)


def _gathered_and_cut(module: Any, inputs: Any, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
    """[T, 1, width / tp] → [T / tp, 1, width]."""
    gathered = tensor_parallel.gather_from_tensor_model_parallel_region(output[0])
    return tensor_parallel.scatter_to_sequence_parallel_region(gathered), output[1]


def full_norm(heads: int) -> ModuleSpec:
    """`FullNorm` in a layer's specification."""
    return ModuleSpec(module=FullNorm, params={"heads": heads})


def with_bias(linear: type) -> type:
    """A row-parallel linear that has a bias although `add_bias_linear` is off: models with a bias in attention and none in the MLP."""
    if linear.__name__ == "WithBias":
        return linear

    class WithBias(linear):
        def __init__(self, *args: Any, bias: bool, **kwargs: Any):
            super().__init__(*args, bias=True, **kwargs)

    return WithBias
