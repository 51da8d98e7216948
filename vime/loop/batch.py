"""From scored samples to the batch the trainers get, and the rollout's own metrics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from vime.algos import advantages as advantage_rules
from vime.config.tree import Config
from vime.data import ImageProcessor, Sample
from vime.errors import RunError
from vime.training.batch import TrainBatch
from vime.training.images import image_batch


def assemble(samples: Sequence[Sample], config: Config, images: ImageProcessor | None = None) -> TrainBatch:
    """The train batch of one step, in the order of `samples`. `images`: the image processor of a model that sees.

    A sample whose reward could not be had takes part in nothing: no group mean, no token in the loss. `rollout.truncated: mask` does the same to
    answers cut at the limit, but their reward stays in the group's mean.
    """
    if not samples:
        raise RunError("rollout", "every group of this step was dropped (rollout.incomplete_group: drop): events.jsonl says why each")
    rewards_B = np.array([np.nan if sample.reward is None else sample.reward for sample in samples], dtype=np.float64)
    group_ids_B = np.array([sample.group_id for sample in samples], dtype=np.int64)
    advantages_B = advantage_rules.group_advantages(rewards_B, group_ids_B, kind=config.algo.advantage, normalize_std=config.algo.normalize_std)
    out_B = np.isnan(rewards_B)
    if config.rollout.truncated == "mask":
        out_B |= np.array([sample.truncated for sample in samples])
    prompts_B = np.array([len(sample.prompt.ids) for sample in samples], dtype=np.int64)
    answers_B = np.array([len(sample.response_ids) for sample in samples], dtype=np.int64)
    lengths_B = prompts_B + answers_B
    answered = np.repeat(np.tile([False, True], len(samples)), np.stack([prompts_B, answers_B], axis=1).ravel())  # [ΣL], True at answers' positions
    mask, logprobs = np.zeros(len(answered), np.uint8), np.zeros(len(answered), np.float32)
    mask[answered] = np.concatenate([sample.loss_mask for sample in samples]) * np.repeat(~out_B, answers_B)
    logprobs[answered] = np.concatenate([sample.engine_logprobs for sample in samples])
    logprobs[mask == 0] = 0.0  # what stands there may be a filler
    return TrainBatch(
        ids=np.fromiter(chain.from_iterable(chain(sample.prompt.ids, sample.response_ids) for sample in samples), np.int64, len(answered)),
        offsets=np.concatenate([[0], np.cumsum(lengths_B)]),
        loss_mask=mask,
        engine_logprobs=logprobs,
        advantages=np.repeat(advantages_B, lengths_B) * mask,
        group_ids=group_ids_B,
        temperature=config.rollout.temperature,
        names=tuple(sample.sample_id for sample in samples),
        images=image_batch([sample.prompt for sample in samples], lengths_B.tolist(), images) if images is not None else None,
    )


def rollout_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """`rollout/…` of one step. Means are over the samples that have the value; with none the metric is left out, never 0."""
    rewards = {sample.sample_id: sample.reward for sample in samples if sample.reward is not None}
    groups: dict[int, set[float]] = {}
    for sample in samples:
        if sample.reward is not None:
            groups.setdefault(sample.group_id, set()).add(sample.reward)
    lengths = [len(sample.response_ids) for sample in samples]
    out = {
        "rollout/response_len_mean": float(np.mean(lengths)),
        "rollout/truncated_frac": float(np.mean([sample.truncated for sample in samples])),
        "rollout/reward_error_count": float(sum(sample.reward_error is not None for sample in samples)),
        "rollout/tokens": float(sum(lengths)),
        "rollout/samples": float(len(samples)),
    }
    if rewards:
        out["rollout/reward_mean"] = float(np.mean(list(rewards.values())))
        out["rollout/reward_std"] = float(np.std(list(rewards.values())))
        out["rollout/equal_group_frac"] = float(np.mean([len(values) == 1 for values in groups.values()]))
    return out


def readable(samples: Sequence[Sample], count: int) -> list[dict[str, object]]:
    """The first `count` samples, of different groups where there are enough, as a person reads them."""
    seen: dict[int, Sample] = {}
    for sample in samples:
        seen.setdefault(sample.group_id, sample)
    chosen = [*seen.values(), *[sample for sample in samples if seen[sample.group_id] is not sample]][:count]
    return [
        {
            "sample_id": sample.sample_id,
            "prompt": sample.prompt.text,
            "label": sample.prompt.label,
            "response": sample.text,
            "reward": sample.reward,
            "reward_error": sample.reward_error,
            "finish_reason": sample.finish_reason,
            "tokens": len(sample.response_ids),
        }
        for sample in chosen
    ]
