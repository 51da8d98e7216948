"""Rotary positions of text with images (M-RoPE): three positions a token, and which of them turns which frequency.

The positions are counted in `vime/training/images.py`. Qwen2-VL gave each axis a run of frequencies, Qwen3-VL interleaves them: frequency i belongs
to height when i mod 3 = 1, to width when i mod 3 = 2, up to three times the axis' section, and to time otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
