from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.training.batch import TrainBatch, pack
from vime.training.batches import minibatches, plan

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=80)


@given(lengths=lengths, ranks=st.integers(1, 5), limit=st.integers(50, 200))
@settings(max_examples=300, deadline=None)
def test_every_sample_once_same_count_everywhere_and_no_micro_batch_above_the_limit(lengths, ranks, limit):
    made = plan(lengths, ranks, limit)
    assert len(made) == ranks
    assert len({len(rank) for rank in made}) == 1
    assert sorted(index for rank in made for micro in rank for index in micro) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in micro) <= limit for rank in made for micro in rank)


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=30), context=st.integers(1, 4), tensor=st.integers(1, 4), limit=st.integers(60, 200))
@settings(max_examples=200, deadline=None)
def test_what_packing_adds_counts_in_the_limit(lengths, context, tensor, limit):
    """Padding of each sequence for context parallelism, and of the pack for sequence parallelism."""
    batch = TrainBatch.of([[3] * length for length in lengths], [[0] * length for length in lengths])
    for rank in plan(lengths, 2, limit, context_parallel=context, multiple=tensor):
        for samples in rank:
            packs = [pack(batch, samples, torch.device("cpu"), tensor, cp=cp, cp_size=context) for cp in range(context)]
            sizes = {len(micro.ids_T) for micro in packs}
            assert len(sizes) == 1 and max(sizes) <= limit and max(sizes) % tensor == 0
            assert context * max(sizes) == int(packs[0].cu_seqlens[-1])


@given(lengths=lengths, limit=st.integers(50, 200))
@settings(max_examples=200, deadline=None)
def test_micro_batches_are_few(lengths, limit):
    """First fit decreasing needs at most 11/9 of the optimum and one more (Johnson 1973); the optimum is at least the tokens over the limit."""
    (rank,) = plan(lengths, 1, limit)
    optimum = max(-(-sum(lengths) // limit), sum(length > limit // 2 for length in lengths))
    assert len(rank) <= 11 / 9 * optimum + 1


def test_ranks_are_balanced_by_tokens():
    made = plan([40, 1, 1, 1, 1, 36], 2, 100)
    assert [sum([40, 1, 1, 1, 1, 36][index] for micro in rank for index in micro) for rank in made] == [40, 40]


def test_a_sample_above_the_limit_is_named():
    with pytest.raises(ValueError, match="sample 7-0-1 has 11 tokens, above train.max_tokens_per_microbatch 10"):
        plan([4, 11], 1, 10, ["7-0-0", "7-0-1"].__getitem__ and (lambda index: f"sample 7-0-{index}"))


def test_a_sample_exactly_at_the_limit_fits():
    assert plan([10, 10], 1, 10) == [[[0], [1]]]


def test_more_ranks_than_samples_gives_empty_micro_batches():
    assert plan([3], 2, 10) == [[[0]], [[]]]


def test_a_rank_with_a_forced_split_has_no_empty_micro_batch():
    """Rank counts are evened by splitting, not by idling."""
    made = plan([50, 50, 50, 30, 30, 30, 30], 2, 60)
    assert all(micro for rank in made for micro in rank)


@given(size=st.integers(1, 100), parts=st.integers(1, 10))
def test_minibatches_are_consecutive_and_near_equal(size, parts):
    if size < parts:
        with pytest.raises(ValueError, match="cannot be split"):
            minibatches(size, parts)
        return
    made = minibatches(size, parts)
    assert [index for part in made for index in part] == list(range(size))
    assert len(made) == parts and max(map(len, made)) - min(map(len, made)) <= 1
