"""The gated delta rule: by chunks as by its definition, and as Hugging Face computes it."""

from __future__ import annotations

import pytest
import torch

from vime.models.delta_rule import chunked_delta_rule, recurrent_delta_rule


def inputs(length: int, keys: int = 8, values: int = 6, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, 3, length, keys, generator=draw) for _ in range(2))
    v = torch.randn(2, 3, length, values, generator=draw)
    g = -torch.rand(2, 3, length, generator=draw) * 2
    beta = torch.rand(2, 3, length, generator=draw)
    return [x.to(dtype).requires_grad_() for x in (q, k, v, g, beta)]


@pytest.mark.parametrize(("length", "chunk"), [(1, 64), (5, 64), (16, 4), (17, 4), (64, 64), (130, 64), (7, 1)])
def test_chunks_compute_the_definition_with_its_gradient(length, chunk):
    first, second = inputs(length), inputs(length)
    slow, fast = recurrent_delta_rule(*first), chunked_delta_rule(*second, chunk=chunk)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    direction = torch.randn(slow.shape, generator=torch.Generator().manual_seed(1))
    (slow * direction).sum().backward()
    (fast * direction).sum().backward()
    for mine, theirs in zip(second, first, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_hugging_face_computes_the_same():
    from transformers.models.qwen3_5.modeling_qwen3_5 import torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule

    q, k, v, g, beta = (x.detach() for x in inputs(70))
    turned = [x.transpose(1, 2) for x in (q, k, v, g, beta)]
    for theirs in (torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule):
        expected, _ = theirs(*turned, use_qk_l2norm_in_kernel=True, initial_state=None, output_final_state=False)
        torch.testing.assert_close(chunked_delta_rule(q, k, v, g, beta), expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_what_comes_later_changes_nothing_before():
    values = [x.detach() for x in inputs(40)]
    whole = chunked_delta_rule(*values, chunk=16)
    cut = chunked_delta_rule(*(x[:, :, :23] for x in values), chunk=16)
    torch.testing.assert_close(whole[:, :, :23], cut, rtol=1e-5, atol=1e-6)


def test_strong_decay_forgets_without_overflow():
    q, k, v, g, beta = (x.detach() for x in inputs(64))
    out = chunked_delta_rule(q, k, v, torch.full_like(g, -80.0), beta)
    alone = torch.cat([chunked_delta_rule(*(x[:, :, t : t + 1] for x in (q, k, v, torch.zeros_like(g), beta))) for t in range(64)], dim=2)
    torch.testing.assert_close(out, alone, rtol=1e-5, atol=1e-6)
