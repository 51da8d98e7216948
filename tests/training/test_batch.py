from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from tests.training.ranks import random_batch
from vime.training.batch import PAD_ID, TrainBatch, pack

CPU = torch.device("cpu")


def changed(batch: TrainBatch, key: str, where: int, value: float) -> TrainBatch:
    array = getattr(batch, key).copy()
    array[where] = value
    return dataclasses.replace(batch, **{key: array})


def test_dict_round_trip():
    batch = random_batch()
    again = TrainBatch.from_dict(batch.to_dict())
    assert all(np.array_equal(getattr(again, field.name), getattr(batch, field.name)) for field in dataclasses.fields(batch))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("engine_logprobs", np.nan, "sample 0-0-1 has an engine log-prob that is not finite"),
        ("advantages", np.inf, "sample 0-0-1 has an advantage"),
        ("ids", 64, "sample 0-0-1 has a token id"),
    ],
)
def test_a_bad_value_names_its_sample(key, value, message):
    batch = random_batch()
    last_of_second = int(batch.offsets[2]) - 1
    with pytest.raises(ValueError, match=message):
        changed(batch, key, last_of_second, value).validate(64)


def test_what_stands_behind_a_zero_mask_does_not_matter():
    batch = random_batch()
    changed(changed(batch, "engine_logprobs", 0, np.nan), "advantages", 0, np.inf).validate(64)


def test_a_mask_on_the_first_token_is_refused():
    with pytest.raises(ValueError, match="sample 0-0-0 has a loss mask on its first token"):
        changed(random_batch(), "loss_mask", 0, 1).validate(64)


def test_arrays_of_other_lengths_are_refused():
    batch = random_batch()
    with pytest.raises(ValueError, match="advantages has"):
        dataclasses.replace(batch, advantages=batch.advantages[:-1]).validate()


def test_packed_rows_stand_one_before_their_targets_and_never_cross_a_sample():
    batch = random_batch(samples=7)
    micro = pack(batch, [5, 0, 3], CPU, multiple=4)
    assert len(micro.ids_T) % 4 == 0
    bounds = micro.cu_seqlens.tolist()
    assert torch.equal(micro.ids_T[micro.rows_N + 1], micro.targets_N)
    for row, where in zip(micro.rows_N.tolist(), micro.positions_N.tolist(), strict=True):
        assert batch.loss_mask[where] == 1
        sequence = int(np.searchsorted(bounds, row, side="right")) - 1
        assert row + 1 < bounds[sequence + 1], "a sample's last token must not predict the next sample"
    assert len(micro.rows_N) == sum(int(batch.loss_mask[batch.offsets[s] : batch.offsets[s + 1]].sum()) for s in (5, 0, 3))


def test_padding_is_a_sequence_of_its_own():
    batch = TrainBatch.of([[4, 5, 6]], [[0, 1, 1]])
    micro = pack(batch, [0], CPU, multiple=4)
    assert micro.cu_seqlens.tolist() == [0, 3, 4]
    assert micro.positions_T.tolist() == [0, 1, 2, 0]
    assert micro.ids_T.tolist() == [4, 5, 6, PAD_ID]


def test_no_samples_pack_to_padding_alone():
    micro = pack(random_batch(), [], CPU)
    assert micro.cu_seqlens.tolist() == [0, 1] and len(micro.rows_N) == 0


@pytest.mark.parametrize("size", [2, 3])
def test_context_parallel_ranks_share_a_pack_in_zig_zag(size):
    """Every token and every prediction on exactly one rank, slices from both ends of a sequence, and the sequence's token count as in the whole."""
    batch = random_batch(samples=7, seed=3)
    whole = pack(batch, [5, 0, 3], CPU)
    parts = [pack(batch, [5, 0, 3], CPU, cp=cp, cp_size=size) for cp in range(size)]
    counts = dict(zip(whole.positions_N.tolist(), whole.sequence_tokens_N.tolist(), strict=True))
    found: list[int] = []
    for part in parts:
        found += part.positions_N.tolist()
        for row, where in zip(part.rows_N.tolist(), part.positions_N.tolist(), strict=True):
            start = int(batch.offsets[np.searchsorted(batch.offsets, where, side="right") - 1])
            assert part.ids_T[row] == batch.ids[where - 1] and part.positions_T[row] == where - 1 - start
        assert part.sequence_tokens_N.tolist() == [counts[where] for where in part.positions_N.tolist()]
        assert part.targets_N.tolist() == batch.ids[part.positions_N.numpy()].tolist()
    assert sorted(found) == sorted(whole.positions_N.tolist())
    first = int(parts[0].cu_seqlens[1]) // (2 * size)
    assert parts[0].positions_T[: 2 * first].tolist() == [*range(first), *range((2 * size - 1) * first, 2 * size * first)]
