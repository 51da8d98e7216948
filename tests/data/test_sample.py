from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from vime.data import Prompt, Sample, group_samples, settle_finish_reason, validate_all
from vime.errors import RunError

PROMPT = Prompt(7, "ab=", [1, 13, 14, 42], "ba")


def make(**changes: Any) -> Sample:
    group, index = changes.get("group_id", 4), changes.get("index", 1)
    fields: dict[str, Any] = {
        "sample_id": f"3-{group}-{index}",
        "group_id": group,
        "index": index,
        "prompt": PROMPT,
        "response_ids": [14, 13, 2],
        "engine_logprobs": np.array([-0.5, -0.1, 0.0], np.float32),
        "loss_mask": np.ones(3, np.uint8),
        "finish_reason": "stop",
        "weight_version": 3,
    }
    return Sample(**{**fields, **changes})


def test_a_whole_sample_is_valid() -> None:
    make().validate()
    make(reward=1.0).validate()
    make(response_ids=[], engine_logprobs=np.zeros(0, np.float32), loss_mask=np.zeros(0, np.uint8), finish_reason="abort").validate()
    assert make(finish_reason="length").truncated
    assert not make().truncated


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine_logprobs": np.array([-0.5, -0.1], np.float32)}, r"3 response ids but log-probs of shape \(2,\)"),
        ({"loss_mask": np.ones(4, np.uint8)}, r"3 response ids but a loss mask of shape \(4,\)"),
        ({"engine_logprobs": np.array([-0.5, np.nan, 0], np.float32)}, "the log-prob of response position 1 is nan"),
        ({"engine_logprobs": np.array([-0.5, -0.1, -np.inf], np.float32)}, "the log-prob of response position 2 is -inf"),
        ({"engine_logprobs": np.array([0.5, -0.1, 0], np.float32)}, "the log-prob of response position 0 is 0.5"),
        ({"engine_logprobs": np.array([-0.5, -0.1, 0])}, "log-probs are float64 and the mask uint8"),
        ({"loss_mask": np.array([0, 1, 2], np.uint8)}, "values other than 0 and 1"),
        ({"sample_id": "3-5-1"}, "its id does not end in its group 4 and index 1"),
        ({"finish_reason": "tired"}, "unknown finish reason 'tired'"),
        ({"response_ids": [], "engine_logprobs": np.zeros(0, np.float32), "loss_mask": np.zeros(0, np.uint8)}, "it has no response ids"),
        ({"reward": float("nan")}, "its reward is nan"),
        ({"reward": 1.0, "reward_error": "timeout"}, "both a reward"),
    ],
)
def test_an_impossible_sample_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    sample = make(**changes)
    with pytest.raises(RunError, match=f"rollout: sample {sample.sample_id}: .*{message}"):
        sample.validate()
    with pytest.raises(RunError, match=f"rollout: sample {sample.sample_id}: .*{message}"):
        validate_all([make(), sample, make(reward=1.0)])


def test_whole_samples_are_valid_together() -> None:
    validate_all([])
    validate_all([make(), make(response_ids=[3], engine_logprobs=np.zeros(1, np.float32), loss_mask=np.zeros(1, np.uint8)), make(reward=0.5)])


@pytest.mark.parametrize(
    ("ids", "reported", "expected"),
    [([5, 2], "length", "stop"), ([5, 6], "length", "length"), ([5, 2], "stop", "stop"), ([], "length", "length"), ([5, 2], "abort", "abort")],
)
def test_an_end_mark_exactly_at_the_limit_is_not_a_truncation(ids: list[int], reported: str, expected: str) -> None:
    assert expected == settle_finish_reason(ids, reported, {2})


def test_groups_are_joined_by_id_in_any_order() -> None:
    samples = [make(group_id=g, index=i) for i in (2, 0, 1) for g in (9, 4)]
    assert {g: [s.sample_id for s in m] for g, m in group_samples(samples, 3).items()} == {9: ["3-9-0", "3-9-1", "3-9-2"], 4: ["3-4-0", "3-4-1", "3-4-2"]}


def test_a_doubled_answer_a_partial_group_and_a_mixed_group_are_refused() -> None:
    whole = [make(index=i) for i in range(3)]
    with pytest.raises(RunError, match=r"group 4 holds index 1 more than once"):
        group_samples([*whole, make(index=1)], 3)
    with pytest.raises(RunError, match=r"group 4 has samples \[0, 2\], expected 0 to 2"):
        group_samples([whole[0], whole[2]], 3)
    with pytest.raises(RunError, match=r"group 4 mixes answers to prompts"):
        group_samples([*whole[:2], make(index=2, prompt=dataclasses.replace(PROMPT, prompt_id=8))], 3)
