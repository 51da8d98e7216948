"""The arithmetic, against other people's implementations and against simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from matrix.rule import Windows
from reports.checks.margins import decide, margins
from reports.stats.intervals import difference, standard_error
from reports.stats.looks import level_per_look
from reports.stats.summary import drop_from_best, gain, grid, residual_sd, summarise
from tests.reports.synthetic import rule


def test_windows_hold_the_declared_steps():
    at = grid(np.arange(100), rule(), 0)
    assert np.arange(100)[at.first].tolist() == [0, 1, 2, 3, 4]
    assert np.arange(100)[at.last].tolist() == list(range(75, 100))
    shifted = grid(np.arange(1, 101), rule(), 1)
    assert np.arange(1, 101)[shifted.first].tolist() == [1, 2, 3, 4, 5]
    assert np.arange(1, 101)[shifted.last].tolist() == list(range(76, 101))


def test_summaries_are_the_means_of_their_windows():
    values = np.arange(100.0)
    found = summarise(values, grid(np.arange(100), rule(), 0))
    assert (found["first"], found["last"], found["whole"]) == (2.0, 87.0, 49.5)


def test_nan_reaches_every_statistic_it_touches():
    values = np.linspace(0, 1, 100)
    values[40] = np.nan
    found = summarise(values, grid(np.arange(100), rule(), 0))
    assert np.isfinite([found["first"], found["last"]]).all()
    assert np.isnan([found["whole"], found["residual"]]).all()


def test_residual_is_blind_to_level_slope_and_bend():
    x = np.linspace(0, 1, 100)
    assert residual_sd(0.4 + 3 * x - 2 * x**2) == pytest.approx(0, abs=1e-12)


def test_residual_of_white_noise_is_its_standard_deviation():
    noise = np.random.default_rng(0).normal(0, 0.3, (2000, 100))
    assert np.sqrt((residual_sd(noise) ** 2).mean()) == pytest.approx(0.3, rel=0.02)


def test_drop_and_gain():
    values = np.concatenate([np.zeros(20), np.ones(60), np.full(20, 0.4)])
    assert drop_from_best(values, 5) == pytest.approx(0.6)
    assert drop_from_best(np.arange(100.0), 5) == 0
    assert gain(np.arange(100.0), grid(np.arange(100), rule(), 0)) == 85


def test_welch_is_scipys():
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(0.9, 0.02, 3), rng.normal(0.92, 0.005, 6)
    level = 0.02
    found = difference(ours, theirs, 0.0, level, "welch")
    wanted = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(1 - 2 * level)
    assert (float(found.low), float(found.high)) == pytest.approx((wanted.low, wanted.high))


def test_one_candidate_takes_the_baselines_spread():
    baseline = np.array([1.0, 2.0, 3.0, 4.0])
    found = difference(np.array([2.0]), baseline, 0.0, 0.05, "welch")
    half = stats.t.ppf(0.95, 3) * baseline.std(ddof=1) * np.sqrt(1 + 1 / 4)
    assert (float(found.low), float(found.high)) == pytest.approx((-0.5 - half, -0.5 + half))
    assert found.df == 3


def test_larger_spread_rule():
    baseline, ours = np.array([1.0, 2.0, 3.0]), np.array([0.0, 10.0])
    se, df = standard_error(ours, baseline, 0.0, "larger")
    assert se == pytest.approx(ours.std(ddof=1) * np.sqrt(1 / 2 + 1 / 3))
    assert df == 2


def test_floor_widens_a_lucky_baseline():
    lucky = np.array([0.9, 0.9001, 0.9])
    assert standard_error(np.array([0.9]), lucky, 0.01, "welch")[0] == pytest.approx(0.01 * np.sqrt(4 / 3))


def test_no_spread_at_all_is_undefined_not_certain():
    found = difference(np.array([0.9]), np.array([0.9, 0.9, 0.9]), 0.0, 0.05, "welch")
    assert np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["candidate", "baseline"])
def test_nan_is_neither_inside_nor_outside(bad, side):
    ours, theirs = np.array([0.9]), np.array([0.9, 0.91, 0.92])
    (ours if side == "candidate" else theirs)[0] = bad
    values = dict.fromkeys(("first", "last", "whole", "residual"), ours)
    with np.errstate(all="ignore"):
        decisions = decide(values, dict.fromkeys(values, theirs), rule(), 100, 0.05)
    assert len(decisions) == 4
    assert not any(d.inside or d.outside for d in decisions)


def test_margins_by_side_and_direction():
    def of(**changes):
        return {m.statistic: (m.low, m.high) for m in margins(rule(**changes), 100)}

    assert of(sided="two")["last"] == (-0.03, 0.03)
    assert of(sided="one")["last"] == (-0.03, np.inf)
    assert of(sided="one", better="lower")["last"] == (-np.inf, 0.03)
    assert of(sided="one")["residual"] == (-np.inf, pytest.approx(np.log(2)))
    assert of(sided="one", better="lower")["residual"] == (-np.inf, pytest.approx(np.log(2)))


@pytest.mark.parametrize("spread", ["welch", "larger"])
@pytest.mark.parametrize("looks", [1, 2, 3])
@pytest.mark.parametrize("runs", [3, 5, 20])
def test_all_looks_together_err_as_often_as_declared(runs, looks, spread):
    """Candidates exactly δ worse, equal spreads: PASS at any look must come in α of the nights; so must FAIL at the other edge."""
    rng, nights, alpha = np.random.default_rng(runs * 10 + looks), 60_000, 0.05
    baseline, candidates = rng.normal(size=(nights, runs)), rng.normal(size=(nights, looks))
    level = level_per_look(runs, looks, alpha, spread)
    ever_above, ever_below = np.zeros(nights, bool), np.zeros(nights, bool)
    for n in range(1, looks + 1):
        found = difference(candidates[:, :n], baseline, 0.0, level, spread)
        ever_above |= found.low > 0
        ever_below |= found.high < 0
    assert ever_above.mean() == pytest.approx(alpha, abs=0.004)
    assert ever_below.mean() == pytest.approx(alpha, abs=0.004)


def test_level_is_the_same_every_time_and_refuses_nonsense():
    assert level_per_look(5, 3, 0.05) == level_per_look.__wrapped__(5, 3, 0.05)
    assert level_per_look(5, 1, 0.025) == 0.025
    with pytest.raises(ValueError, match="two"):
        level_per_look(1, 3, 0.05)
    with pytest.raises(ValueError, match="1 to 3"):
        level_per_look(5, 4, 0.05)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=3, max_size=6), st.lists(st.floats(0, 1), min_size=1, max_size=3), st.floats(-5, 5))
def test_order_and_a_common_constant_change_nothing(theirs, ours, constant):
    a, b = np.array(ours), np.array(theirs)
    found = difference(a, b, 0.01, 0.02, "welch")
    moved = difference(a[::-1] + constant, b[::-1] + constant, 0.01, 0.02, "welch")
    np.testing.assert_allclose([found.low, found.high], [moved.low, moved.high], rtol=1e-6, atol=1e-9)


def test_windows_that_overlap_are_refused_by_the_rule():
    with pytest.raises(ValueError, match="disjoint"):
        rule(planned_steps=20, windows=Windows(first=5, last=16))
