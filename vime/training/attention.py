"""Causal attention over packed sequences without TransformerEngine.

A packed micro-batch holds sequences of many lengths end to end. They are sorted into buckets by length (powers of two from 64 up, so that padding at most
doubles the work of long ones), each bucket is laid out as [sequences, heads, longest, dim], and torch's scaled_dot_product_attention runs on it. Padding
stands behind each sequence: the causal mask keeps it from every real position, and its outputs are never read.

Under context parallelism a rank holds two slices of each sequence (`context.py`). Keys and values of all ranks are gathered, and each rank's queries attend to
those before them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn.functional import scaled_dot_product_attention

from vime.training.context import gathered_rows, local_rows
from vime.training.rows import move_rows

SHORT = 64  # tokens; below it another bucket costs more than its padding saves
BLOCK = 1024  # queries scored at once under context parallelism: bounds the mask of long sequences


@dataclass(frozen=True)
class Rows:
    """Where a bucket's tokens come from and go: `tokens_N` their rows in the packed tensor (None: all of it, in order), `places_N` their places in the flat
    [count · longest] layout (None: in order, without padding)."""

    count: int
    longest: int
    tokens_N: torch.Tensor | None
    places_N: torch.Tensor | None

    def lay_out(self, x: torch.Tensor) -> torch.Tensor:
        """[T, heads, D] → [count, heads, longest, D], zeros where there is no token."""
        flat = move_rows(x, self.tokens_N, self.places_N, self.count * self.longest)
        return flat.view(self.count, self.longest, *x.shape[1:]).transpose(1, 2)

    def flatten(self, x: torch.Tensor) -> torch.Tensor:
        """[count, heads, longest, D] → [N, heads, D]."""
        flat = x.transpose(1, 2).reshape(self.count * self.longest, x.shape[1], x.shape[3])
        return move_rows(flat, self.places_N, None, self.count * self.longest)


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length. `query_positions_BQ`: where each query stands in its sequence; None: query q at position q, as without context
    parallelism."""

    queries: Rows
    keys: Rows
    query_positions_BQ: torch.Tensor | None = None


def buckets(cu_seqlens: torch.Tensor, cp: int = 0, cp_size: int = 1) -> list[Bucket]:
    """Plan of a micro-batch from its cumulative lengths, int32[B+1], over all context-parallel ranks. Sequences of one length and packs of one bucket need no
    padding or no gather."""
    device = cu_seqlens.device
    bounds = cu_seqlens.cpu().numpy().astype(np.int64)
    lengths = np.diff(bounds)
    powers = np.ceil(np.log2(np.maximum(lengths, SHORT))).astype(np.int64)
    used = [np.flatnonzero((powers == power) & (lengths > 0)) for power in np.unique(powers[lengths > 0])]
    gathered = gathered_rows(lengths, cp_size) if cp_size > 1 else None
    out = []
    for members in used:
        sizes = lengths[members]
        whole = _in_sequences(bounds[:-1][members], sizes)
        if gathered is None:
            rows = _rows(whole, sizes, device, len(used) == 1)
            out.append(Bucket(rows, rows))
            continue
        queries = _rows(_in_sequences(bounds[:-1][members] // cp_size, sizes // cp_size), sizes // cp_size, device, len(used) == 1)
        positions = np.zeros((len(sizes), int(sizes.max()) // cp_size), np.int64)
        for index, size in enumerate(sizes):
            positions[index, : size // cp_size] = local_rows(np.array([size]), cp, cp_size)
        out.append(Bucket(queries, _rows(gathered[whole], sizes, device, False), torch.as_tensor(positions, device=device)))
    return out


def _in_sequences(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """start, start + 1, … of each sequence."""
    return np.repeat(starts, sizes) + _inside(sizes)


def _inside(sizes: np.ndarray) -> np.ndarray:
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _rows(tokens: np.ndarray, sizes: np.ndarray, device: torch.device, everything: bool) -> Rows:
    longest = int(sizes.max())
    places = None if (sizes == longest).all() else np.repeat(np.arange(len(sizes)) * longest, sizes) + _inside(sizes)
    tokens_N = None if everything else torch.as_tensor(tokens, device=device)
    return Rows(len(sizes), longest, tokens_N, None if places is None else torch.as_tensor(places, device=device))


class PackedAttention(MegatronModule):
    """Megatron's core attention for `qkv_format="thd"`; takes the arguments its layers pass. Causal only; no dropout, window or softmax offset."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ):
        super().__init__(config=config)
        if config.attention_dropout or config.window_size is not None or config.softmax_type != "vanilla":
            raise NotImplementedError("attention without TransformerEngine: no dropout, window or softmax offset")
        assert config.kv_channels is not None
        self.softmax_scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(config.kv_channels)
        self.cp_group = parallel_state.get_context_parallel_group() if config.context_parallel_size > 1 else None

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
        """query [T, heads, D], key [T, kv heads, D], value [T, kv heads, E] → [T, heads · E]. T counts this context-parallel rank's tokens."""
        if packed_seq_params is None or packed_seq_params.qkv_format != "thd" or attention_bias is not None:
            raise NotImplementedError("PackedAttention takes packed sequences (qkv_format 'thd') without bias")
        plan = getattr(packed_seq_params, "_vime_buckets", None)
        if plan is None:  # once a micro-batch: all layers share it
            plan = buckets(packed_seq_params.cu_seqlens_q, *((self.cp_group.rank(), self.cp_group.size()) if self.cp_group else ()))
            packed_seq_params._vime_buckets = plan
        if self.cp_group is not None:
            key, value = gather_from_sequence_parallel_region(torch.cat((key, value), -1), group=self.cp_group).split((key.shape[-1], value.shape[-1]), -1)
        tokens, parts = query.shape[0], [self._bucket(query, key, value, bucket) for bucket in plan]
        if len(parts) == 1:
            return parts[0].reshape(tokens, -1)
        order = torch.cat([rows_N for bucket in plan if (rows_N := bucket.queries.tokens_N) is not None])  # with several buckets none is the whole pack
        return move_rows(torch.cat(parts), None, order, tokens).reshape(tokens, -1)

    def _bucket(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bucket: Bucket) -> torch.Tensor:
        """Attention of one bucket's sequences: [N, heads, E], rows in the order of its queries."""
        q, k, v = bucket.queries.lay_out(query), bucket.keys.lay_out(key), bucket.keys.lay_out(value)
        options: dict[str, Any] = {"scale": self.softmax_scale, "enable_gqa": q.shape[1] != k.shape[1]}
        if bucket.query_positions_BQ is None:
            return bucket.queries.flatten(scaled_dot_product_attention(q, k, v, is_causal=True, **options))
        parts = []
        for block, positions_BQ in zip(q.split(BLOCK, 2), bucket.query_positions_BQ.split(BLOCK, 1), strict=True):
            reach = int(positions_BQ.max()) + 1  # no query of the block sees a later key
            mask = torch.arange(reach, device=q.device) <= positions_BQ[:, None, :, None]
            parts.append(scaled_dot_product_attention(block, k[:, :, :reach], v[:, :, :reach], attn_mask=mask, **options))
        return bucket.queries.flatten(torch.cat(parts, 2))
