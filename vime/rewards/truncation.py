"""What an answer that was cut at the token limit is worth (`rollout.truncated`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vime.data.sample import Sample

TruncatedPolicy = Literal["keep", "zero", "mask"]


def apply_truncated_policy(samples: Sequence[Sample], policy: TruncatedPolicy) -> dict[str, float]:
    """Apply the policy to the cut answers, after scoring, in place. Returns the metric `rollout/truncated_frac`.

    keep: the reward stands. zero: the reward becomes 0 (an answer that could not be scored stays unscored). mask: the reward stands in the group's
    mean, and no token of the answer enters the loss.
    """
    cut = [s for s in samples if s.truncated]
    for sample in cut:
        if policy == "zero" and sample.reward is not None:
            sample.reward = 0.0
        elif policy == "mask":
            sample.loss_mask[:] = 0
    return {"rollout/truncated_frac": len(cut) / len(samples)} if samples else {}
