"""From samples to the train batch, against the same thing said sample by sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.config.resolve import from_dict
from vime.config.tree import Config
from vime.data import Image, Prompt, Sample
from vime.errors import RunError
from vime.loop.batch import assemble

FILLER = 7.0  # what no reader may see where the mask is 0


def config(**rollout: Any) -> Config:
    return from_dict(
        {"model": {"path": "twin"}, "data": {"task": "spell_backward"}, "rollout": {"max_prompt_tokens": 8, "max_response_tokens": 8, **rollout}}
    ).config


def sample(group: int, index: int, prompt: list[int], answer: list[int], masked: int, reward: float | None, reason: Any) -> Sample:
    mask = np.ones(len(answer), np.uint8)
    mask[:masked] = 0
    logprobs = np.where(mask > 0, np.linspace(-2, -1, len(answer)), FILLER).astype(np.float32)
    return Sample(f"0-{group}-{index}", group, index, Prompt(group, "p", prompt, "l"), answer, logprobs, mask, reason, 0, reward=reward)


ids = st.lists(st.integers(0, 63), min_size=1, max_size=6)
samples = st.builds(
    lambda prompt, answer, masked, reward, reason: sample(0, 0, prompt, answer, min(masked, len(answer)), reward, reason),
    ids,
    ids,
    st.integers(0, 2),
    st.sampled_from([0.0, 0.5, 1.0, None]),
    st.sampled_from(["stop", "length"]),
)


@given(st.lists(samples, min_size=1, max_size=8), st.sampled_from(["keep", "mask"]))
def test_every_position_is_about_its_own_token(drawn: list[Sample], truncated: str) -> None:
    drawn = [replace(item, sample_id=f"0-{place // 2}-{place % 2}", group_id=place // 2, index=place % 2) for place, item in enumerate(drawn)]
    batch = assemble(drawn, config(truncated=truncated))
    batch.validate()
    for place, item in enumerate(drawn):
        here = slice(batch.offsets[place], batch.offsets[place + 1])
        out = item.reward is None or (truncated == "mask" and item.truncated)
        prompt = np.zeros(len(item.prompt.ids))
        assert [*item.prompt.ids, *item.response_ids] == batch.ids[here].tolist()
        mask = np.concatenate([prompt, item.loss_mask * (not out)])
        assert mask.tolist() == batch.loss_mask[here].tolist()
        assert np.where(mask > 0, np.concatenate([prompt, item.engine_logprobs]), 0).tolist() == batch.engine_logprobs[here].tolist()
        assert not batch.advantages[here][mask == 0].any()
        assert len({*batch.advantages[here][mask > 0].tolist()}) <= 1
    assert tuple(item.sample_id for item in drawn) == batch.names
    assert batch.engine_logprobs.max() < FILLER


def test_an_answer_without_a_reward_moves_no_mean() -> None:
    rewards = [1.0, 0.0, None]
    batch = assemble([sample(4, index, [5], [6, 2], 0, reward, "stop") for index, reward in enumerate(rewards)], config())
    assert batch.advantages.tolist() == [0, 0.5, 0.5, 0, -0.5, -0.5, 0, 0, 0]
    assert batch.loss_mask.tolist() == [0, 1, 1, 0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("policy", "expected"), [("keep", [0, 1, 1, 0, 1, 1]), ("mask", [0, 1, 1, 0, 0, 0])])
def test_an_answer_cut_at_the_limit_stays_in_the_mean(policy: str, expected: list[int]) -> None:
    cut = [sample(4, 0, [5], [6, 2], 0, 1.0, "stop"), sample(4, 1, [5], [6, 7], 0, 0.0, "length")]
    batch = assemble(cut, config(truncated=policy))
    assert expected == batch.loss_mask.tolist()
    assert batch.advantages[1:3].tolist() == [0.5, 0.5]


def test_a_step_without_any_answer_says_why() -> None:
    with pytest.raises(RunError, match="rollout: every group of this step was dropped"):
        assemble([], config())


class Pictures:
    """An image processor whose patches are the image's number; counts how often it cuts."""

    token_id, merge = 50, 2

    def __init__(self) -> None:
        self.cut: list[list[str]] = []

    def patches(self, images: list[Image]) -> np.ndarray:
        self.cut.append([image.digest for image in images])
        return np.concatenate([np.full((4, 6), int(image.digest), np.float32) for image in images])


def test_the_pictures_of_a_group_are_cut_once_and_stand_at_their_tokens() -> None:
    first, second = (Image(b"", name, (1, 2, 2), 1) for name in ("1", "2"))
    seen = [
        Prompt(0, "p", [1, 48, 50, 49, 5], "l", {}, (first,)),
        Prompt(1, "p", [1, 48, 50, 49, 48, 50, 49], "l", {}, (second, first)),
        Prompt(2, "p", [1, 5], "l"),
    ]
    drawn = [
        replace(sample(group, index, prompt.ids, [7] * (index + 1), 0, 1.0, "stop"), prompt=prompt) for group, prompt in enumerate(seen) for index in range(3)
    ]
    processor = Pictures()
    batch = assemble(drawn, config(), processor)  # type: ignore[arg-type]
    batch.validate()
    assert processor.cut == [["1", "2"]]
    assert batch.images is not None
    for number, item in enumerate(drawn):
        at = slice(batch.offsets[number], batch.offsets[number + 1])
        wanted = {50: iter(int(image.digest) - 1 for image in item.prompt.images)}
        assert batch.images.image[at].tolist() == [next(wanted[50]) if token == 50 else -1 for token in batch.ids[at]]
    assert assemble(drawn[-3:], config(), processor).images is None  # type: ignore[arg-type]
    assert assemble(drawn, config()).images is None
