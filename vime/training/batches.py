"""Which samples go to which data-parallel rank and micro-batch. Pure: the same plan on every rank, from the lengths alone."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

from vime.training.context import pack_multiple, padded

Plan = list[list[list[int]]]  # [rank][micro-batch][sample index]


def plan(
    lengths: Sequence[int],
    data_parallel: int,
    max_tokens: int,
    name: Callable[[int], str] = "sample number {}".format,
    *,
    context_parallel: int = 1,
    multiple: int = 1,
) -> Plan:
    """Spread samples of these lengths (tokens) over `data_parallel` ranks, each rank's share over micro-batches of at most `max_tokens` tokens.

    Every rank gets the same number of micro-batches (a pipeline or a collective would hang otherwise), the smallest that fits; a micro-batch may be empty
    only where a rank has fewer samples than micro-batches. Ranks and micro-batches are balanced by tokens; inside a micro-batch samples keep their order.
    The limit is for one rank, what `pack` adds for `context_parallel` and `multiple` included: a micro-batch over c context-parallel ranks holds c times as
    much. Raises ValueError naming a sample that no micro-batch can hold.
    """
    unit = pack_multiple(multiple, context_parallel)
    limit = max_tokens * context_parallel // unit * unit
    sizes = [padded(length, context_parallel) for length in lengths]
    for index, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
        if size > limit:
            over = f" (as {limit} usable ones of {context_parallel} context-parallel ranks)" if unit > 1 else ""
            raise ValueError(
                f"{name(index)} has {length} tokens, above train.max_tokens_per_microbatch {max_tokens}{over}: "
                "raise that limit or lower rollout.max_response_tokens"
            )
    ranks = _balance(range(len(sizes)), sizes, data_parallel)
    count = max(1, *(len(_first_fit(rank, sizes, limit)) for rank in ranks))
    return [[sorted(part) for part in _split(rank, sizes, count, limit)] for rank in ranks]


def minibatches(size: int, parts: int) -> list[list[int]]:
    """`size` samples to `parts` optimizer steps, consecutive, sizes differing by at most one. Raises ValueError when there are fewer samples than parts."""
    if size < parts:
        raise ValueError(f"{size} samples cannot be split over train.optimizer_steps_per_rollout {parts}")
    bounds = [round(part * size / parts) for part in range(parts + 1)]
    return [list(range(*pair)) for pair in itertools.pairwise(bounds)]


def _balance(samples: Sequence[int], lengths: Sequence[int], parts: int, limit: int | None = None) -> list[list[int]]:
    """Longest first, each to the part with the fewest tokens. With a `limit` on a part's tokens, raises OverflowError when this rule cannot keep it."""
    heap = [(0, part) for part in range(parts)]
    out: list[list[int]] = [[] for _ in range(parts)]
    for sample in sorted(samples, key=lambda index: (-lengths[index], index)):
        tokens, part = heapq.heappop(heap)
        if limit is not None and tokens + lengths[sample] > limit:
            raise OverflowError
        out[part].append(sample)
        heapq.heappush(heap, (tokens + lengths[sample], part))
    return out


def _first_fit(samples: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """First fit, longest first: bins of at most `max_tokens`."""
    bins: list[list[int]] = []
    room: list[int] = []
    for sample in sorted(samples, key=lambda index: (-lengths[index], index)):
        place = next((index for index, free in enumerate(room) if lengths[sample] <= free), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(max_tokens)
        bins[place].append(sample)
        room[place] -= lengths[sample]
    return bins


def _split(samples: Sequence[int], lengths: Sequence[int], count: int, max_tokens: int) -> list[list[int]]:
    """Into exactly `count` micro-batches: balanced where that keeps the limit, else first fit filled up by splitting the fullest."""
    try:
        return _balance(samples, lengths, count, max_tokens)
    except OverflowError:
        bins = _first_fit(samples, lengths, max_tokens)
        while len(bins) < count:
            fullest = max(range(len(bins)), key=lambda index: len(bins[index]))
            half = len(bins[fullest]) // 2
            bins.append(bins[fullest][:half])
            bins[fullest] = bins[fullest][half:]
        return bins
