"""Does the sampler draw from the distribution the trainer assumes? One step's tokens tell.

For a token drawn from p, E[−log p(token)] is the entropy H(p), given everything before it. The differences −log p − H therefore have mean zero and
are uncorrelated
along a sequence (a martingale difference), so their mean over all tokens of a step, in units of its standard error, is about standard normal. A
sampler at a lower temperature than assumed
gives a negative value, one that mixes in other tokens a positive one. It says nothing under top-p or top-k, where the sampler's distribution differs by design.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch


@dataclass(frozen=True)
class MomentSums:
    """Count, sum and sum of squares of −log p − H; adding the parts of several ranks or micro-batches gives the whole's."""

    n: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, nll_T: torch.Tensor, entropy_T: torch.Tensor, mask_T: torch.Tensor) -> Self:
        """From float[T] in nats; only positions with mask 1 count."""
        difference_T = (nll_T.detach() - entropy_T.detach())[mask_T > 0].double()
        return cls(float(difference_T.numel()), float(difference_T.sum()), float(difference_T.square().sum()))

    def __add__(self, other: MomentSums) -> MomentSums:
        return MomentSums(self.n + other.n, self.total + other.total, self.squares + other.squares)

    def z(self) -> float:
        """Mean in standard errors. NaN with fewer than two tokens; 0 where every difference is 0 (a policy without randomness)."""
        if self.n < 2:
            return math.nan
        mean = self.total / self.n
        variance = max(self.squares / self.n - mean * mean, 0.0) * self.n / (self.n - 1)
        if variance == 0.0:
            return 0.0 if mean == 0.0 else math.copysign(math.inf, mean)
        return mean / math.sqrt(variance / self.n)


def nll_minus_entropy_z(nll_T: torch.Tensor, entropy_T: torch.Tensor, mask_T: torch.Tensor) -> float:
    """The statistic of one batch on one rank (see `MomentSums` for several)."""
    return MomentSums.of(nll_T, entropy_T, mask_T).z()
