"""Limits and margins as numbers, computed here by hand: a sign, a factor or an end that is off changes one of them."""

import math

import numpy as np
import pytest
from scipy import stats

from matrix.outcome import Outcome
from reports.checks.learning import largest_drop, least_gain
from reports.checks.margins import Margin, decide_one
from reports.judge import judge
from reports.stats.intervals import beyond, difference, outside
from reports.stats.summary import drop_from_best, grid
from reports.verdict import Declared
from tests.reports.synthetic import jsonl, rewards, rule

VOUCHED = Declared(assume_comparable=True)
BASE = np.array([0.50, 0.51, 0.49, 0.52, 0.48])  # mean 0.5, sd 0.0158


def decided(candidate, sided, better):
    """The last window of one candidate against BASE, δ 0.1."""
    low, high = (-0.1, 0.1) if sided == "two" else (-0.1, math.inf) if better == "higher" else (-math.inf, 0.1)
    return decide_one(Margin("last", 0.1, low, high, 0.0, 1.0 if better == "higher" else -1.0), np.array([candidate]), BASE, rule(sided=sided), 0.05)


@pytest.mark.parametrize("sided", ["one", "two"])
@pytest.mark.parametrize(("better", "sign"), [("higher", 1), ("lower", -1)])
def test_far_better_is_wholly_beyond_the_margin_on_the_better_side(sided, better, sign):
    """The interval's half width here is t(0.95, 4)·s·√(1 + 1/5) = 0.037."""
    states = {shift: decided(0.5 + sign * shift, sided, better) for shift in (-0.2, -0.12, 0.0, 0.05, 0.12, 0.14, 0.2)}
    assert [bool(one.far_better) for one in states.values()] == [False, False, False, False, False, True, True]
    assert [bool(one.outside) for one in states.values()] == [True, False, False, False, False, sided == "two", sided == "two"]
    assert [bool(one.inside) for one in states.values()] == [False, False, True, True, sided == "one", sided == "one", sided == "one"]


@pytest.mark.parametrize(("better", "factor"), [("higher", 1), ("lower", -1)])
def test_a_far_better_run_passes_one_sided_and_is_pointed_out(tmp_path, better, factor):
    def run(name, seed, more=0.0):
        return jsonl(tmp_path / name, [factor * (value + more) for value in rewards(seed)])

    base = [run(f"{seed}.jsonl", seed) for seed in range(5)]
    far = judge([run("far.jsonl", 100, 0.3)], base, rule(sided="one", better=better), VOUCHED)
    assert far.outcome is Outcome.PASS
    assert "last window: far better than the baseline: check reward and data" in far.reasons
    usual = judge([run("usual.jsonl", 101)], base, rule(sided="one", better=better), VOUCHED)
    assert (usual.outcome, any("far better" in reason for reason in usual.reasons)) == (Outcome.PASS, False)


def test_the_drop_that_is_usual():
    """Mean of the baseline's drops + t(0.995, B - 1)·s·√(1 + 1/B), a prediction of one more; 4 standard errors of two windows; at least δ."""
    drops = np.array([0.10, 0.20, 0.30, 0.20])
    predicted = 0.2 + stats.t.ppf(0.995, 3) * drops.std(ddof=1) * math.sqrt(1 + 1 / 4)
    assert largest_drop(np.array([0.0]), drops, rule(), 10) == pytest.approx([predicted])
    assert largest_drop(np.array([0.8]), drops, rule(), 10) == pytest.approx([max(predicted, 4 * 0.8 * math.sqrt(2 / 10))])
    assert largest_drop(np.array([0.0]), drops[:2], rule(), 10) == pytest.approx([rule().delta.last])
    assert drop_from_best(np.array([0.0, 1.0, 3.0, 3.0, 1.0, 1.0]), 2) == pytest.approx(2.0)


def test_the_gain_that_noise_makes():
    at = grid(np.arange(100), rule(), 0)
    first, last = at.first.sum(), at.last.sum()
    within = stats.norm.ppf(0.95) * 0.5 * math.sqrt(1 / first + 1 / last)
    assert least_gain(np.array([0.5]), np.array([0.3]), rule(alpha=0.05), at) == pytest.approx([within], rel=1e-5)
    gains = np.array([0.1, 0.5, 0.9])
    between = stats.t.ppf(0.95, 2) * gains.std(ddof=1)
    assert least_gain(np.array([0.5]), gains, rule(alpha=0.05), at) == pytest.approx([max(within, between)])


@pytest.mark.parametrize(("shift", "low", "high"), [(0.3, -0.1, 0.1), (-0.3, -0.1, 0.1), (0.3, -math.inf, 0.1), (-0.3, -0.1, math.inf)])
def test_p_value_of_lying_within_the_margin(shift, low, high):
    found = difference(np.array([0.5 + shift]), BASE, 0.0, 0.05, "welch")
    distance = abs(shift) - 0.1
    assert beyond(found, low, high) == pytest.approx(stats.t.sf(distance / (BASE.std(ddof=1) * math.sqrt(1.2)), 4))
    assert outside(found, low, high)
    assert beyond(found, -math.inf if shift > 0 else -0.4, math.inf if shift > 0 else 0.4) > 0.5


@pytest.mark.parametrize(("steps", "planned", "outcome"), [(100, 100, Outcome.PASS), (101, 100, Outcome.INVALID), (99, 100, Outcome.INCOMPLETE)])
@pytest.mark.parametrize("start", [0, 1])
def test_one_step_more_or_less_than_planned(tmp_path, steps, planned, outcome, start):
    base = [jsonl(tmp_path / f"{seed}.jsonl", rewards(seed), start=start) for seed in range(5)]
    values = rewards(100)
    found = judge([jsonl(tmp_path / "c.jsonl", [*values, values[-1]][:steps], start=start)], base, rule(planned_steps=planned), VOUCHED)
    assert found.outcome is outcome, found.reasons


def test_half_of_the_sparsest_curve_s_steps_are_enough(tmp_path):
    base = [jsonl(tmp_path / f"{seed}.jsonl", rewards(seed)[::2], stride=2) for seed in range(4)]
    found = judge([jsonl(tmp_path / "half.jsonl", rewards(100)[::5], stride=5)], base, rule(), VOUCHED)
    [shared] = [check for check in found.checks if check.name == "common steps"]
    assert (shared.state, shared.text) == ("good", "the runs share 10 steps of rollout/reward_mean (20 in the sparsest)")
