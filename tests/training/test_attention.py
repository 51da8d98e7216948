"""Packed attention against each sequence alone, values and gradients."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from vime.training.attention import PackedAttention, buckets
from vime.training.rows import move_rows


def packs(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def run(lengths: list[int], heads: int = 4, groups: int = 2, dim: int = 8):
    from megatron.core.packed_seq_params import PackedSeqParams

    torch.manual_seed(0)
    total = sum(lengths)
    q, k, v = (torch.randn(total, count, dim, requires_grad=True) for count in (heads, groups, groups))
    cu = packs(lengths)
    attention = PackedAttention.__new__(PackedAttention)
    torch.nn.Module.__init__(attention)
    attention.softmax_scale, attention.cp_group = 1 / math.sqrt(dim), None
    out = attention(q, k, v, packed_seq_params=PackedSeqParams(qkv_format="thd", cu_seqlens_q=cu, cu_seqlens_kv=cu))
    return q, k, v, out


def alone(q, k, v, lengths):
    parts = []
    for a, b, c in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
        one = [x.transpose(0, 1)[None].repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (a, b, c)]
        parts.append(scaled_dot_product_attention(*one, is_causal=True)[0].transpose(0, 1))
    return torch.cat(parts).flatten(1)


@pytest.mark.parametrize("lengths", [[5], [3, 3, 3], [1, 7, 2], [70, 3, 200, 1, 64, 65], [130, 130], [1], [4, 0, 3]])
def test_equals_each_sequence_alone(lengths):
    q, k, v, out = run(lengths)
    weights = torch.randn_like(out)
    grads = torch.autograd.grad((out * weights).sum(), (q, k, v))
    lengths = [length for length in lengths if length]
    expected = alone(q, k, v, lengths)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    for got, want in zip(grads, torch.autograd.grad((expected * weights).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_padding_at_most_doubles_the_work_of_long_sequences():
    lengths = [1000, 30, 500, 700, 31, 65, 127, 1]
    for bucket in buckets(packs(lengths)):
        padded = bucket.keys.count * bucket.keys.longest
        assert padded <= max(2 * len(bucket.keys.tokens_N), bucket.keys.count * 64)


class Group:
    def __init__(self, rank: int, size: int):
        self.rank, self.size = lambda: rank, lambda: size


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("block", [1024, 5])
def test_context_parallel_ranks_together_equal_one(size, block, monkeypatch):
    """Each rank's queries against the gathered keys and values; gradients of a loss that all ranks add to."""
    from megatron.core.packed_seq_params import PackedSeqParams

    from vime.training import attention as module
    from vime.training.context import local_rows

    monkeypatch.setattr(module, "BLOCK", block)
    lengths = [2 * size * n for n in (1, 9, 3, 40 // size, 1)]
    torch.manual_seed(0)
    q, k, v = (torch.randn(sum(lengths), heads, dim, requires_grad=True) for heads, dim in ((4, 8), (2, 8), (2, 6)))
    expected = alone(q, k, v, lengths)
    weights = torch.randn_like(expected)
    rows = [torch.as_tensor(local_rows(torch.tensor(lengths).numpy(), rank, size)) for rank in range(size)]
    everyone = torch.cat([torch.cat((k, v), -1)[own] for own in rows])
    monkeypatch.setattr(module, "gather_from_sequence_parallel_region", lambda local, group: everyone)
    loss = 0.0
    for rank in range(size):
        attention = PackedAttention.__new__(PackedAttention)
        torch.nn.Module.__init__(attention)
        attention.softmax_scale, attention.cp_group = 1 / math.sqrt(8), Group(rank, size)
        own = rows[rank]
        out = attention(q[own], k[own], v[own], packed_seq_params=PackedSeqParams(qkv_format="thd", cu_seqlens_q=packs(lengths), cu_seqlens_kv=packs(lengths)))
        torch.testing.assert_close(out, expected[own], rtol=1e-5, atol=1e-6)
        loss = loss + (out * weights[own]).sum()
    grads = torch.autograd.grad(loss, (q, k, v))
    for got, want in zip(grads, torch.autograd.grad((expected * weights).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_other_forms_are_refused():
    attention = PackedAttention.__new__(PackedAttention)
    torch.nn.Module.__init__(attention)
    with pytest.raises(NotImplementedError, match="thd"):
        attention(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), torch.zeros(1, 1, 1), packed_seq_params=SimpleNamespace(qkv_format="sbhd"))


def test_move_rows_gradient():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    source, target = torch.tensor([4, 0, 2]), torch.tensor([1, 5, 3])
    assert torch.autograd.gradcheck(lambda x: move_rows(x, source, target, 7), x)
    assert torch.autograd.gradcheck(lambda x: move_rows(x, source, None, 3), x)
    assert torch.autograd.gradcheck(lambda x: move_rows(x, None, torch.tensor([1, 0, 6, 5, 3]), 7), x)
