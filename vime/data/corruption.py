"""Label noise for a warm start: a policy that is right often enough to learn from, and wrong often enough to have something to learn."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence


def corrupt_labels(ids: Sequence[int], noise: float, alphabet: Sequence[int], rng: random.Random) -> list[int]:
    """`ids` with each token of `alphabet` replaced, with probability `noise`, by a uniformly drawn other token of it.

    A token outside the alphabet (the end mark) never changes. Only `rng.random()` is drawn from, whose stream Python guarantees across versions, since
    a warm start is pinned by the hash of its content. Raises ValueError when noise is not in [0, 1] or the alphabet has no other token to offer.
    """
    if not 0 <= noise <= 1:
        raise ValueError(f"noise {noise} is not a probability")
    position = {token: i for i, token in enumerate(alphabet)}
    if noise > 0 and len(position) < 2:
        raise ValueError(f"label noise needs an alphabet of at least two tokens, got {list(alphabet)}")
    return [_other(alphabet, position[t], rng) if t in position and rng.random() < noise else t for t in ids]


def label_alphabet(labels: Iterable[Sequence[int]], end_ids: Collection[int]) -> list[int]:
    """The tokens that occur in the labels, sorted, without the end marks."""
    return sorted({token for ids in labels for token in ids} - set(end_ids))


def _other(alphabet: Sequence[int], own: int, rng: random.Random) -> int:
    drawn = int(rng.random() * (len(alphabet) - 1))
    return alphabet[drawn + (drawn >= own)]
