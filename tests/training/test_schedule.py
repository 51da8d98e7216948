from __future__ import annotations

import pytest

from vime.config.tree import TrainConfig
from vime.training.schedule import lr_at


def test_warm_up_then_linear_to_the_floor():
    train = TrainConfig(lr=1.0, steps=110, warmup_steps=10, decay="linear", min_lr_fraction=0.1)
    assert lr_at(0, train) == pytest.approx(0.1)
    assert lr_at(9, train) == pytest.approx(1.0)
    assert lr_at(10, train) == pytest.approx(1.0)
    assert lr_at(109, train) == pytest.approx(0.1)
    assert lr_at(10 + 99 // 3, train) == pytest.approx(0.7)
    assert lr_at(500, train) == pytest.approx(0.1)


def test_cosine_is_half_way_in_the_middle():
    train = TrainConfig(lr=2.0, steps=101, decay="cosine")
    assert [lr_at(step, train) for step in (0, 50, 100)] == pytest.approx([2.0, 1.0, 0.0])


def test_constant_and_one_step():
    assert lr_at(7, TrainConfig(lr=3e-4, steps=100)) == 3e-4
    assert lr_at(0, TrainConfig(lr=1.0, steps=1, decay="linear")) == 1.0


def test_a_negative_step_is_refused():
    with pytest.raises(ValueError, match="-1"):
        lr_at(-1, TrainConfig())
