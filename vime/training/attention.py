"""Causal attention over packed sequences without TransformerEngine.

A packed micro-batch holds sequences of many lengths end to end. They are sorted into buckets by length (powers of two from 64 up, so that padding at most
doubles the work of long ones), each bucket is laid out as [sequences, heads, longest, dim], and torch's scaled_dot_product_attention runs on it. Padding
stands behind each sequence: the causal mask keeps it from every real position, and its outputs are never read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import scaled_dot_product_attention

from vime.training.rows import move_rows

SHORT = 64  # tokens; below it another bucket costs more than its padding saves


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length. `tokens_N`: their positions in the packed micro-batch; `places_N`: where each goes in the flat [count · longest] layout,
    None if in order."""

    count: int
    longest: int
    tokens_N: torch.Tensor
    places_N: torch.Tensor | None


def buckets(cu_seqlens: torch.Tensor) -> list[Bucket]:
    """Plan of a micro-batch from its cumulative lengths, int32[B+1]. Sequences of one length and packs of one bucket need no padding or no gather."""
    device = cu_seqlens.device
    bounds = cu_seqlens.to("cpu", torch.int64)
    starts, lengths = bounds[:-1], bounds[1:] - bounds[:-1]
    powers = torch.ceil(torch.log2(lengths.clamp(min=SHORT).double())).long()
    out = []
    for power in torch.unique(powers[lengths > 0]).tolist():
        members = torch.nonzero((powers == power) & (lengths > 0)).flatten()
        sizes = lengths[members]
        longest, count = int(sizes.max()), len(members)
        inside_N = torch.arange(int(sizes.sum())) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        tokens_N = torch.repeat_interleave(starts[members], sizes) + inside_N
        places_N = torch.repeat_interleave(torch.arange(count) * longest, sizes) + inside_N
        full = bool((sizes == longest).all())
        out.append(Bucket(count, longest, tokens_N.to(device), None if full else places_N.to(device)))
    return out


class PackedAttention(MegatronModule):
    """Megatron's core attention for `qkv_format="thd"`; takes the arguments its layers pass. No dropout, no context parallelism, causal only."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ):
        super().__init__(config=config)
        if config.context_parallel_size > 1 or config.attention_dropout or config.window_size is not None or config.softmax_type != "vanilla":
            raise NotImplementedError("attention without TransformerEngine: no context parallelism, dropout, window or softmax offset")
        assert config.kv_channels is not None
        self.softmax_scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> torch.Tensor:
        """query [T, heads, D], key and value [T, kv heads, D] → [T, heads · D]."""
        if packed_seq_params is None or packed_seq_params.qkv_format != "thd" or attention_bias is not None:
            raise NotImplementedError("PackedAttention takes packed sequences (qkv_format 'thd') without bias")
        plan = getattr(packed_seq_params, "_vime_buckets", None)
        if plan is None:  # once a micro-batch: all layers share it
            plan = buckets(packed_seq_params.cu_seqlens_q)
            packed_seq_params._vime_buckets = plan
        tokens, parts = query.shape[0], [self._bucket(query, key, value, bucket, len(plan) == 1) for bucket in plan]
        if len(parts) == 1:
            return parts[0].reshape(tokens, -1)
        order = torch.cat([bucket.tokens_N for bucket in plan])
        return move_rows(torch.cat(parts), None, order, tokens).reshape(tokens, -1)

    def _bucket(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bucket: Bucket, only: bool) -> torch.Tensor:
        """Attention of one bucket's sequences: [N, heads, D], rows in the order of its tokens."""
        size = bucket.count * bucket.longest
        tokens_N = None if only else bucket.tokens_N  # one bucket holds every token, in order
        q, k, v = (
            move_rows(x, tokens_N, bucket.places_N, size).view(bucket.count, bucket.longest, x.shape[1], x.shape[2]).transpose(1, 2)
            for x in (query, key, value)
        )
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=q.shape[1] != k.shape[1])
        flat = out.transpose(1, 2).reshape(size, *query.shape[1:])
        return move_rows(flat, bucket.places_N, None, size)
