from __future__ import annotations

import pytest

from tests.rewards.samples import sample
from vime.config.tree import RewardConfig
from vime.rewards import RewardPool
from vime.rewards.math import boxed, math


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("42", "\\boxed{42}"),
        (42, "The answer is 42."),
        ("1/2", "\\boxed{\\frac12}"),
        ("\\frac{1}{2}", "so it is \\boxed{0.5}, done"),
        ("$\\frac{1}{2}$", "$0.5$"),
        ("5 apples and 3 more make 8, times 9 #### 72", "\\boxed{72}"),
        ("x^2+1", "\\boxed{1+x^2}"),
        ("(1,2)", "\\boxed{(1, 2)}"),
        ("\\{1,2\\}", "\\boxed{\\{2,1\\}}"),
        ("1,000", "\\boxed{1000}"),
        ("42", "first \\boxed{41}, no: \\boxed{42}"),
        ("\\boxed{5}", "5"),
    ],
)
def test_equal_answers_pay(label: object, text: str) -> None:
    assert math(text, label, {}) == 1.0


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("42", "\\boxed{41}"),
        ("42", "no number here"),
        ("42", ""),
        ("42", "\\boxed{}"),
        ("42", "\\boxed{42"),  # cut inside the box
        ("42", "\\boxed{42} or rather \\boxed{4"),
        ("42", "\\boxed{\\frac{42}{1}"),
        ("42", "\\boxed{{{]]"),
        ("42", "42, no: \\boxed{43}"),
    ],
)
def test_other_answers_do_not(label: str, text: str) -> None:
    assert math(text, label, {}) == 0.0


def test_require_boxed() -> None:
    assert math("42", "42", {}, require_boxed=True) == 0.0
    assert math("\\boxed{42}", "42", {}, require_boxed=True) == 1.0


@pytest.mark.parametrize(
    ("text", "content"), [("none", None), ("\\boxed{a{b}c} d", "a{b}c"), ("\\boxed{a\\}b}", "a\\}b"), ("\\boxed 42$", "42"), ("\\boxed{a", ""), ("\\boxed", "")]
)
def test_boxed(text: str, content: str | None) -> None:
    assert boxed(text) == content


@pytest.mark.parametrize("label", ["", "???", "{{{", "\\text{unclosed"])
def test_a_reference_that_cannot_be_parsed_marks_the_sample_and_never_pays(label: str) -> None:
    with RewardPool(RewardConfig(name="math")) as pool:
        samples = [sample(label or "nothing", label), sample("\\boxed{1}", "1", number=1)]
        metrics = pool.score(samples)
    assert [s.reward for s in samples] == [None, 1.0]
    assert samples[0].reward_error is not None
    assert samples[0].reward_error.startswith(f"ValueError: the reference answer {label!r} cannot be parsed as mathematics")
    assert metrics["rollout/reward_error_count"] == 1.0


def test_an_expression_that_never_ends_is_stopped() -> None:
    with RewardPool(RewardConfig(name="math", timeout_s=0.5)) as pool:
        samples = [sample("\\boxed{10^{10^{10}}}", "2"), sample("\\boxed{2}", "2", number=1)]
        pool.score(samples)
    assert samples[1].reward == 1.0
    assert samples[0].reward is None
    assert (samples[0].reward_error or "").startswith("timeout: ")
