"""Rotary positions of text with images (M-RoPE): three positions a token, and which of them turns which frequency.

A text token stands at one position on all three axes (time, height, width). An image's tokens share its time position and count rows and columns from
there; the text after it goes on behind the larger of the two. Qwen2-VL gave each axis a run of frequencies, Qwen3-VL interleaves them: frequency i belongs
to height when i mod 3 = 1, to width when i mod 3 = 2, up to three times the axis' section, and to time otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def mrope_positions(ids: Sequence[int] | np.ndarray, grids: Sequence[Sequence[int]], image_token_id: int, merge: int) -> np.ndarray:
    """int64[3, L] of one sequence: `grids` are the (time, height, width) patches of its images in order, `merge` how many patches a side one token stands
    for.

    Raises ValueError when the runs of image tokens do not fit the images.
    """
    ids = np.asarray(ids, dtype=np.int64)
    out = np.empty((3, len(ids)), dtype=np.int64)
    place, position = 0, 0
    for grid in grids:
        start = place + _first(ids[place:] == image_token_id)
        out[:, place:start] = position + np.arange(start - place)
        position += start - place
        time, height, width = int(grid[0]), int(grid[1]) // merge, int(grid[2]) // merge
        stop = start + time * height * width
        if stop > len(ids) or (ids[start:stop] != image_token_id).any():
            raise ValueError(f"an image of {time} × {height} × {width} tokens does not fit the image tokens from {start} on ({len(ids)} tokens in all)")
        axes = np.meshgrid(np.arange(time), np.arange(height), np.arange(width), indexing="ij")
        out[:, start:stop] = position + np.stack([axis.ravel() for axis in axes])
        position += max(height, width)
        place = stop
    if (ids[place:] == image_token_id).any():
        raise ValueError(f"{int((ids == image_token_id).sum())} image tokens are more than its {len(grids)} images make")
    out[:, place:] = position + np.arange(len(ids) - place)
    return out


def _first(where: np.ndarray) -> int:
    """Index of the first True, the length when there is none."""
    return int(where.argmax()) if where.any() else len(where)


class InterleavedRotary(torch.nn.Module):
    """In the place of Megatron's MultimodalRotaryEmbedding: the same call, interleaved axes, one row of angles a token of the pack."""

    def __init__(self, channels: int, base: float, sections: Sequence[int], percent: float = 1.0):
        """`channels` of a head, of which `percent` turn; `sections`: frequencies of time, height and width."""
        super().__init__()
        width = int(channels * percent)
        self.inv_freq = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float32) / width))  # no buffer: a cast model must not round it
        self.axis = _axes(len(self.inv_freq), sections)

    def forward(self, position_ids: torch.Tensor, mrope_section: Sequence[int] | None = None, cp_group: object = None) -> torch.Tensor:
        """position_ids [3, 1, T] (or [1, T]: text alone) → angles [T, 1, 1, R], the two halves equal."""
        positions_3T = position_ids[:, 0] if position_ids.dim() == 3 else position_ids.expand(3, -1)
        by_axis_TF = positions_3T[self.axis.to(positions_3T.device)].T.float()
        angles = by_axis_TF * self.inv_freq.to(positions_3T.device)
        return torch.cat((angles, angles), dim=-1)[:, None, None]


def _axes(frequencies: int, sections: Sequence[int]) -> torch.Tensor:
    """int64[F]: the axis of each frequency."""
    axis = torch.zeros(frequencies, dtype=torch.int64)
    for number in (1, 2):
        axis[number : 3 * sections[number] : 3] = number
    return axis
