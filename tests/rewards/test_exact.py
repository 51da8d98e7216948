import numpy as np
import pytest

from tests.rewards.samples import sample
from vime.data import decode_response, encode_label
from vime.errors import UserError
from vime.models.twins import character_tokenizer
from vime.rewards import apply_truncated_policy
from vime.rewards.exact import exact_match
from vime.rewards.math import math


def score(text: str, label: object, finish_reason: str = "stop", ids: tuple[int, ...] = (), **args: bool) -> float:
    return exact_match(text, label, {}, finish_reason=finish_reason, response_ids=list(ids), **args)


def test_only_the_whole_answer_with_its_end_mark_pays() -> None:
    assert score("olleh", "olleh") == 1.0
    assert score("olleh", "olleh", "length") == 0.0  # the right letters, cut before the end mark
    assert score("olle", "olleh") == 0.0
    assert score("olleh ", "olleh") == 0.0
    assert score("Olleh", "olleh") == 0.0
    assert score(" Olleh ", "olleh", strip=True, ignore_case=True) == 1.0
    assert score("6", 6) == 1.0


def test_a_label_of_ids_is_compared_with_the_ids_before_the_end_mark() -> None:
    assert score("", [5, 6], ids=(5, 6, 2)) == 1.0
    assert score("", [5, 6], ids=(5, 6, 6, 2)) == 0.0
    assert score("", [5, 6], "length", ids=(5, 6, 6)) == 0.0


def test_junk_ids_inside_an_answer_are_not_read_over() -> None:
    tokenizer = character_tokenizer()
    right = tokenizer("olleh", add_special_tokens=False)["input_ids"]
    assert score(decode_response(tokenizer, [*right, 2], (2,)), "olleh") == 1.0
    for junk in (0, 1, 2, 50, 63, 64, 1000):
        assert score(decode_response(tokenizer, [*right[:2], junk, *right[2:], 2], (2,)), "olleh") == 0.0


@pytest.mark.parametrize(
    ("policy", "rewards", "masks"), [("keep", [1, 1, None], [1, 1, 1]), ("zero", [1, 0, None], [1, 1, 1]), ("mask", [1, 1, None], [1, 0, 0])]
)
def test_truncated_policies(policy: str, rewards: list[float | None], masks: list[int]) -> None:
    samples = [sample("a"), sample("b", number=1, finish_reason="length"), sample("c", number=2, finish_reason="length")]
    for s, reward in zip(samples, (1.0, 1.0, None), strict=True):
        s.reward = reward

    metrics = apply_truncated_policy(samples, policy)  # type: ignore[arg-type]

    assert metrics == {"rollout/truncated_frac": 2 / 3}
    assert rewards == [s.reward for s in samples]
    assert masks == [int(np.all(s.loss_mask)) for s in samples]


def test_no_samples_no_truncated_fraction() -> None:
    assert apply_truncated_policy([], "keep") == {}


def test_a_missing_reference_is_an_error_not_the_text_none() -> None:
    with pytest.raises(ValueError, match="no reference answer"):
        score("None", None)
    with pytest.raises(ValueError, match="no reference answer"):
        math("None", None, {})
    with pytest.raises(UserError, match="no reference answer to train on"):
        encode_label(character_tokenizer(), None, 2)
