"""Context parallelism: which tokens of a packed micro-batch each rank holds.

Every sequence is padded to a multiple of 2·cp and cut into 2·cp slices; rank r holds slices r and 2·cp − 1 − r, one from each end, so that all ranks have
the same number of (query, key) pairs under the causal mask. This is the order Megatron's rotary embedding and TransformerEngine's attention expect.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def padded(length: int, cp_size: int) -> int:
    """Tokens a sequence takes in a pack over `cp_size` ranks."""
    return length if cp_size == 1 else -(-length // (2 * cp_size)) * (2 * cp_size)


def pack_multiple(multiple: int, cp_size: int) -> int:
    """What a pack's tokens must be a multiple of, so that each rank's share is one of `multiple` (sequence parallelism)."""
    return multiple if cp_size == 1 else cp_size * math.lcm(multiple, 2)


def local_rows(sizes: np.ndarray, cp: int, cp_size: int) -> np.ndarray:
    """Positions in the whole pack of the tokens that rank `cp` holds, in its order: int64[T / cp_size]. `sizes`: the sequences' padded lengths."""
    import numpy as np

    starts = np.cumsum(sizes) - sizes
    if cp_size == 1:
        return np.arange(int(sizes.sum()))
    parts = [np.arange(0)]
    for start, size in zip(starts.tolist(), (sizes // (2 * cp_size)).tolist(), strict=True):
        parts += [start + cp * size + np.arange(size), start + (2 * cp_size - 1 - cp) * size + np.arange(size)]
    return np.concatenate(parts)


def gathered_rows(sizes: np.ndarray, cp_size: int) -> np.ndarray:
    """Where each position of the whole pack stands when the ranks' shares are put end to end: int64[T]."""
    import numpy as np

    order = np.concatenate([local_rows(sizes, cp, cp_size) for cp in range(cp_size)])
    out = np.empty_like(order)
    out[order] = np.arange(len(order))
    return out
