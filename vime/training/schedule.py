"""The learning rate of a step."""

from __future__ import annotations

import math

from vime.config.tree import TrainConfig


def lr_at(step: int, train: TrainConfig) -> float:
    """Learning rate of optimizer updates in rollout step `step`, counted from 0.

    Warm-up rises linearly: step w of `warmup_steps` W has lr·(w + 1)/W. Then constant, or from lr at step W down to lr·min_lr_fraction at the last step,
    `steps` − 1, linearly or along half a cosine. Past the last step the rate stays at its end.
    """
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}")
    if step < train.warmup_steps:
        return train.lr * (step + 1) / train.warmup_steps
    if train.decay == "constant":
        return train.lr
    span = max(train.steps - 1 - train.warmup_steps, 1)
    done = min((step - train.warmup_steps) / span, 1.0)
    kept = 1.0 - done if train.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    floor = train.lr * train.min_lr_fraction
    return floor + (train.lr - floor) * kept
