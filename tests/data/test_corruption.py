from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.data import corrupt_labels, encode_label, label_alphabet
from vime.models.twins import EOS_ID, character_tokenizer

ALPHABET = [13, 14, 15, 16]


@given(ids=st.lists(st.sampled_from(ALPHABET), max_size=20), noise=st.floats(0, 1), seed=st.integers())
def test_replacements_stay_in_the_alphabet_and_the_end_mark_stays(ids: list[int], noise: float, seed: int) -> None:
    corrupted = corrupt_labels([*ids, EOS_ID], noise, ALPHABET, random.Random(seed))
    assert len(corrupted) == len(ids) + 1
    assert corrupted[-1] == EOS_ID
    assert set(corrupted[:-1]) <= set(ALPHABET)


def test_the_share_and_the_spread_of_replacements() -> None:
    n = 40_000
    corrupted = corrupt_labels([14] * n, 0.22, ALPHABET, random.Random(0))
    counts = {token: corrupted.count(token) / n for token in ALPHABET}
    assert counts[14] == pytest.approx(0.78, abs=0.01)
    for other in (13, 15, 16):  # every replacement is another token, all equally likely
        assert counts[other] == pytest.approx(0.22 / 3, abs=0.006)


def test_noise_zero_changes_nothing_and_one_changes_everything() -> None:
    ids = [13, 14, 15, 16] * 5
    assert ids == corrupt_labels(ids, 0.0, ALPHABET, random.Random(1))
    assert all(a != b for a, b in zip(ids, corrupt_labels(ids, 1.0, ALPHABET, random.Random(1)), strict=True))


def test_the_stream_is_pinned() -> None:
    assert corrupt_labels([13, 14, 15, 16] * 2, 0.5, ALPHABET, random.Random(7)) == [14, 14, 14, 13, 13, 15, 13, 15]


def test_impossible_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"noise 1.5 is not a probability"):
        corrupt_labels([13], 1.5, ALPHABET, random.Random(0))
    with pytest.raises(ValueError, match=r"at least two tokens"):
        corrupt_labels([13], 0.5, [13], random.Random(0))


def test_the_alphabet_of_labels_is_without_their_end_mark() -> None:
    tokenizer = character_tokenizer()
    labels = [encode_label(tokenizer, text, EOS_ID) for text in ("cab", "bad")]
    assert labels == [[15, 13, 14, 2], [14, 13, 16, 2]]
    assert label_alphabet(labels, {EOS_ID}) == ALPHABET
