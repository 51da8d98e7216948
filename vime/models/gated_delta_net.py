"""Gated delta net in plain torch, with the interface and the parameters of Megatron's own, for packed sequences.

Megatron-Core's module needs the kernels of flash-linear-attention and refuses packed sequences. Its parameters, their tensor-parallel split and their
checkpoint layout are kept; the forward pass is written here.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.ssm import gated_delta_net as megatron_gdn
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import conv1d, pad, silu, softplus

from vime.models.delta_rule import chunked_delta_rule
from vime.training.attention import Bucket, buckets
from vime.training.rows import move_rows


class PackedGatedDeltaNet(megatron_gdn.GatedDeltaNet):
    """A layer's token mixer. Heads are split over tensor-parallel ranks: value heads with the key heads they belong to.

    Convolution and state begin anew at each sequence of the pack: sequences of similar length are laid out as rows of a bucket, as in
    `vime.training.attention`, so nothing crosses a boundary. The padding behind a row is never read by the positions before it.
    """

    def __init__(self, config: TransformerConfig, submodules: Any, layer_number: int | None = None, **kwargs: Any):
        available, megatron_gdn.HAVE_FLA = megatron_gdn.HAVE_FLA, True  # the flag guards kernels that only the forward pass replaced here calls
        try:
            super().__init__(config, submodules, layer_number=layer_number, **{key: value for key, value in kwargs.items() if key != "cp_comm_type"})
        finally:
            megatron_gdn.HAVE_FLA = available
        self.cp_group = parallel_state.get_context_parallel_group() if config.context_parallel_size > 1 else None

    def forward(self, hidden_states: torch.Tensor, attention_mask: Any = None, *, packed_seq_params: PackedSeqParams | None = None, **kwargs: Any) -> Any:
        """hidden_states [T / sequence-parallel ranks, 1, H] → the same shape and None (no bias). Other arguments of attention layers are not used."""
        if packed_seq_params is None or packed_seq_params.qkv_format != "thd":
            raise NotImplementedError("PackedGatedDeltaNet takes packed sequences (qkv_format 'thd')")
        projected, _ = self.in_proj(hidden_states)
        flat = projected[:, 0]  # [T, (2·key + 2·value + 2·value heads) / tp]
        widths = [size // self.tp_size for size in (2 * self.qk_dim + self.v_dim, self.v_dim, 2 * self.num_value_heads)]
        qkv, gate, beta_alpha = flat.split(widths, dim=-1)
        mixed = self._mix(torch.cat((qkv, beta_alpha), dim=-1), packed_seq_params)
        normed = self._gated_norm(mixed, gate.unflatten(-1, (-1, self.value_head_dim)))
        return self.out_proj(normed.flatten(1)[:, None])

    def _mix(self, rows: torch.Tensor, packed_seq_params: PackedSeqParams) -> torch.Tensor:
        """Convolution and delta rule of every sequence: [T, (2·key + value + 2·value heads) / tp] → [T, value heads / tp, V]. T counts this context-parallel
        rank's tokens; the state runs through whole sequences, so each rank goes through all of theirs and keeps its own positions."""
        plan, tokens = self._plan(packed_seq_params), rows.shape[0]
        if self.cp_group is not None:
            rows = gather_from_sequence_parallel_region(rows, group=self.cp_group)
        parts = [self._bucket(rows, bucket) for bucket in plan]
        if len(parts) == 1:
            return parts[0]
        order = [bucket.queries.tokens_N for bucket in plan if bucket.queries.tokens_N is not None]  # each has them, where there are several
        return move_rows(torch.cat(parts), None, torch.cat(order), tokens)

    def _plan(self, packed_seq_params: PackedSeqParams) -> list[Bucket]:
        """Made once a micro-batch: all layers share it, attention layers too."""
        plan = getattr(packed_seq_params, "_vime_buckets", None)
        if plan is None:
            plan = buckets(packed_seq_params.cu_seqlens_q, *((self.cp_group.rank(), self.cp_group.size()) if self.cp_group else ()))
            packed_seq_params._vime_buckets = plan
        return plan

    def _bucket(self, rows: torch.Tensor, bucket: Bucket) -> torch.Tensor:
        """One bucket's sequences: [N, value heads / tp, V], rows in the order of its queries."""
        keys, heads, width = self.qk_dim // self.tp_size, self.num_value_heads // self.tp_size, self.value_head_dim
        laid_out = bucket.keys.lay_out(rows[:, None])[:, 0]  # [sequences, longest, …]
        qkv, beta, alpha = laid_out.split([laid_out.shape[-1] - 2 * heads, heads, heads], dim=-1)
        qkv = silu(conv1d(pad(qkv.transpose(1, 2), (self.conv_kernel_dim - 1, 0)), self.conv1d.weight, self.conv1d.bias, groups=qkv.shape[-1]))
        q, k, v = qkv.split([keys, keys, qkv.shape[1] - 2 * keys], dim=1)
        q, k = (x.unflatten(1, (-1, self.key_head_dim)).transpose(2, 3).repeat_interleave(self.num_value_heads // self.num_key_heads, dim=1) for x in (q, k))
        g = -self.A_log.float().exp() * softplus(alpha.float() + self.dt_bias.float())
        v = v.unflatten(1, (heads, width)).transpose(2, 3)
        out = chunked_delta_rule(q, k, v, g.transpose(1, 2), beta.sigmoid().transpose(1, 2)).to(rows.dtype)
        if bucket.query_positions_BQ is not None:
            out = out.gather(2, bucket.query_positions_BQ[:, None, :, None].expand(-1, heads, -1, width))
        return bucket.queries.flatten(out)

    def _gated_norm(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """RMSNorm of each head, then silu(gate). Tensor-parallel ranks share the weight and see different heads, so its gradient is summed over them."""
        weight = copy_to_tensor_model_parallel_region(self.out_norm.weight, group=self.pg_collection.tp)
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.config.layernorm_epsilon)
        return (weight * normed.to(x.dtype) * silu(gate.float())).to(x.dtype)
