"""What a score, its absence and a cut answer come to in the batch the trainers get: the driver's own step, with a real reward pool and no engines."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.rewards.user_rewards import __name__ as user_rewards
from vime.config.resolve import from_dict
from vime.data import Prompt, PromptSource, Sample
from vime.loop.sync import Inputs, SyncRun
from vime.rewards import RewardPool
from vime.training.batch import TrainBatch

PROMPTS = [Prompt(0, "p0", [1, 5], "x"), Prompt(1, "p1", [1, 6], "y")]
TEXTS = [["1", "0", "raise"], ["1", "0", "0"]]  # by_command: the text is the reward, "raise" fails
CUT = (1, 0)  # group 1's paid answer was cut at the limit


def samples() -> list[Sample]:
    return [
        Sample(f"0-{g}-{i}", g, i, PROMPTS[g], [7, 8, 2], np.full(3, -0.5, np.float32), np.ones(3, np.uint8), "length" if (g, i) == CUT else "stop", 0, text)
        for g, texts in enumerate(TEXTS)
        for i, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def rewards() -> Iterator[RewardPool]:
    config = from_dict({"model": {"path": "m"}, "data": {"task": "t"}, "reward": {"name": f"{user_rewards}:by_command"}}).config
    with RewardPool(config.reward) as pool:
        yield pool


def step(rewards: RewardPool, monkeypatch: pytest.MonkeyPatch, truncated: str) -> tuple[TrainBatch, dict[str, float]]:
    """One step of the driver over `samples()`: the batch it hands to the trainers, and its metrics."""
    config = from_dict({"model": {"path": "m"}, "data": {"task": "t"}, "rollout": {"truncated": truncated}}).config
    batches: list[TrainBatch] = []

    def train(batch: TrainBatch, step: int) -> dict[str, float]:
        batches.append(batch)
        return {}

    record: Any = SimpleNamespace(step=lambda *_: None, samples=lambda *_: None)
    run = SyncRun(config, None, record, Inputs(None, PromptSource(PROMPTS, 0), [], rewards, None))  # type: ignore[arg-type]
    run.turns = SimpleNamespace(to_training=lambda: None)  # type: ignore[assignment]
    run.trainers = SimpleNamespace(train=train)  # type: ignore[assignment]
    run.router = SimpleNamespace(counts=SimpleNamespace(metrics=dict))  # type: ignore[assignment]
    monkeypatch.setattr(run, "_rollout", lambda step: samples())
    monkeypatch.setattr(run, "_push", lambda version: None)
    metrics = run._step(0)
    return batches[0], metrics


def per_sample(batch: TrainBatch, values: np.ndarray) -> list[list[float]]:
    ends = batch.offsets
    return [values[ends[i] + 2 : ends[i + 1]].tolist() for i in range(len(ends) - 1)]


def test_an_unscored_sample_is_in_no_mean_and_no_loss(rewards: RewardPool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, metrics = step(rewards, monkeypatch, "keep")
    assert [m[0] for m in per_sample(batch, batch.loss_mask)] == [1, 1, 0, 1, 1, 1]
    assert [a[0] for a in per_sample(batch, batch.advantages)] == pytest.approx([0.5, -0.5, 0.0, 2 / 3, -1 / 3, -1 / 3])
    assert metrics["rollout/reward_error_count"] == 1
    assert metrics["rollout/reward_mean"] == pytest.approx(2 / 5)
    assert metrics["rollout/truncated_frac"] == pytest.approx(1 / 6)


def test_a_cut_answer_is_paid_zero(rewards: RewardPool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, metrics = step(rewards, monkeypatch, "zero")
    assert [m[0] for m in per_sample(batch, batch.loss_mask)] == [1, 1, 0, 1, 1, 1]
    assert [a[0] for a in per_sample(batch, batch.advantages)] == pytest.approx([0.5, -0.5, 0.0, 0.0, 0.0, 0.0])
    assert metrics["rollout/reward_mean"] == pytest.approx(1 / 5)


def test_a_cut_answer_is_masked_and_still_in_its_groups_mean(rewards: RewardPool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, _ = step(rewards, monkeypatch, "mask")
    assert per_sample(batch, batch.loss_mask) == [[1] * 3, [1] * 3, [0] * 3, [0] * 3, [1] * 3, [1] * 3]
    assert [a[0] for a in per_sample(batch, batch.advantages)] == pytest.approx([0.5, -0.5, 0.0, 0.0, -1 / 3, -1 / 3])
