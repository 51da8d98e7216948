"""Advantages from rewards. Numpy only: they are computed in the driver, which has no need of torch."""

from __future__ import annotations

from typing import Literal

import numpy as np

STD_EPS = 1e-6  # keeps a group whose rewards are all equal at advantage 0 instead of 0/0


def group_advantages(
    rewards_B: np.ndarray,
    group_ids_B: np.ndarray,
    *,
    kind: Literal["grpo", "reinforce"] = "grpo",
    normalize_std: bool = False,
) -> np.ndarray:
    """Advantage of each sample against its own group.

    `rewards_B` float[B], NaN where a sample could not be scored: it gets advantage 0 and does not enter its group's mean. `group_ids_B` int[B]:
    groups are told apart by
    id, never by position, so any order and any group size will do. Returns float32[B].

    grpo: r − mean(group), divided by the group's sample standard deviation if `normalize_std` (Shao et al. 2024, arXiv:2402.03300, eq. 3; without
    the division Liu et al. 2025,
    arXiv:2503.20783). reinforce: the reward itself. Raises ValueError on ±inf, or when the shapes differ.
    """
    rewards_B = np.asarray(rewards_B, dtype=np.float64)
    group_ids_B = np.asarray(group_ids_B)
    if rewards_B.shape != group_ids_B.shape or rewards_B.ndim != 1:
        raise ValueError(f"rewards {rewards_B.shape} and group ids {group_ids_B.shape} must be one-dimensional and of one length")
    if np.isinf(rewards_B).any():
        raise ValueError(f"reward of sample {int(np.isinf(rewards_B).argmax())} is infinite")
    scored_B = ~np.isnan(rewards_B)
    advantages_B = np.where(scored_B, rewards_B, 0.0)
    if kind == "grpo":
        for group in np.unique(group_ids_B):
            members = scored_B & (group_ids_B == group)
            if not members.any():
                continue
            centred = rewards_B[members] - rewards_B[members].mean()
            if normalize_std:
                centred = centred / (centred.std(ddof=1) + STD_EPS) if len(centred) > 1 else np.zeros_like(centred)
            advantages_B[members] = centred
    return advantages_B.astype(np.float32)
