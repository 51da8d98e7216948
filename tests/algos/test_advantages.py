import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime.algos.advantages import group_advantages


def test_reward_minus_group_mean():
    out = group_advantages(np.array([1.0, 0.0, 1.0, 1.0]), np.array([7, 7, 9, 9]))
    assert out.tolist() == [0.5, -0.5, 0.0, 0.0]
    assert out.dtype == np.float32


def test_groups_are_told_apart_by_id_not_by_position():
    rewards, ids = np.array([1.0, 5.0, 0.0, 7.0]), np.array([0, 1, 0, 1])
    assert group_advantages(rewards, ids).tolist() == [0.5, -1.0, -0.5, 1.0]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-10, 10)), min_size=1, max_size=40), st.randoms())
def test_order_of_samples_changes_nothing(pairs, random):
    ids, rewards = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    order = list(range(len(pairs)))
    random.shuffle(order)
    direct = group_advantages(rewards, ids)[order]
    np.testing.assert_allclose(group_advantages(rewards[order], ids[order]), direct, atol=1e-6)


def test_an_unscored_sample_is_in_neither_mean_nor_loss():
    out = group_advantages(np.array([1.0, np.nan, 0.0]), np.array([0, 0, 0]))
    assert out.tolist() == [0.5, 0.0, -0.5]


def test_infinite_reward_is_refused():
    with pytest.raises(ValueError, match="sample 1 is infinite"):
        group_advantages(np.array([0.0, np.inf]), np.array([0, 0]))


def test_std_of_a_constant_group_gives_zero_not_nan():
    assert group_advantages(np.array([1.0, 1.0, 3.0]), np.array([0, 0, 1]), normalize_std=True).tolist() == [0.0, 0.0, 0.0]


def test_std_is_the_sample_standard_deviation():
    out = group_advantages(np.array([0.0, 1.0, 2.0]), np.array([0, 0, 0]), normalize_std=True)
    np.testing.assert_allclose(out, [-1, 0, 1], atol=1e-5)


def test_reinforce_is_the_reward_itself():
    assert group_advantages(np.array([2.0, np.nan]), np.array([0, 0]), kind="reinforce").tolist() == [2.0, 0.0]
