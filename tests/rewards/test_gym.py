from __future__ import annotations

import itertools

from tests.rewards.samples import sample
from vime.config.tree import RewardConfig
from vime.data.tasks import task_stream
from vime.rewards import RewardPool
from vime.rewards.gym import reasoning_gym


def test_answers_are_scored_by_the_dataset_that_made_the_prompt() -> None:
    countdown = next(task_stream("rg:countdown", 1, {"min_numbers": 3, "max_numbers": 3}))
    spell = next(task_stream("spell_backward", 1, {}))
    with RewardPool(RewardConfig(name="reasoning_gym")) as pool:
        samples = [
            sample(str(countdown.label), countdown.label, metadata=countdown.metadata),
            sample("1+1", countdown.label, number=1, metadata=countdown.metadata),
            sample(spell.label.upper(), spell.label, number=2, metadata=spell.metadata),
            sample("3", "3", number=3),
        ]
        pool.score(samples)
    assert [s.reward for s in samples] == [1.0, 0.05, 1.0, None]
    assert "scores prompts of reasoning-gym tasks only" in (samples[3].reward_error or "")


def test_every_reference_answer_gets_the_full_score() -> None:
    for name in ("chain_sum", "spell_backward", "rg:gcd", "rg:spiral_matrix", "rg:knights_knaves", "rg:sudoku"):
        for raw in itertools.islice(task_stream(name, 3, {}), 5):
            assert reasoning_gym(str(raw.label), raw.label, raw.metadata) == 1.0


def test_the_answer_can_be_taken_from_a_tag() -> None:
    raw = next(task_stream("chain_sum", 1, {}))
    assert reasoning_gym(f"I think <answer> {raw.label} </answer>", raw.label, raw.metadata, tag="answer") == 1.0
    assert reasoning_gym(str(raw.label), raw.label, raw.metadata, tag="answer") == 0.0
