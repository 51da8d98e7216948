"""Limits and margins as numbers, computed here by hand: a sign, a factor or an end that is off changes one of them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from matrix.outcome import Outcome
from matrix.rule import Exactness
from reports.checks import copies, exactness, resources, shifts
from reports.checks.context import Case
from reports.checks.convergence import level_of
from reports.checks.learning import largest_drop, least_gain
from reports.checks.margins import Margin, decide_one
from reports.judge import judge
from reports.model import Curve, Run
from reports.readers import read_run
from reports.stats.intervals import beyond, difference, outside
from reports.stats.looks import level_per_look
from reports.stats.summary import drop_from_best, grid
from reports.verdict import Declared, PoolGroup
from tests.reports.synthetic import jsonl, rewards, rule, run_dir

VOUCHED = Declared(assume_comparable=True)
EMPTY_RUN = Run(Path("x"), "jsonl", np.arange(100), {})
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


def test_a_band_holds_up_to_its_very_end(tmp_path):
    gap = 0.25  # written and read without rounding; the largest gap of a token is 20 times that
    run = read_run(run_dir(tmp_path / "seed-100", 100, gap=gap))
    for band, state in ((20 * gap, "good"), (np.nextafter(20 * gap, 0), "bad")):
        bands = Exactness(weight_digests=False, step0_logprob_gap_max=band)
        assert [check.state for check in exactness.check(Case([run], [], rule(exactness=bands)))] == [state]


@pytest.mark.parametrize(("apart", "copied"), [(0.0, True), (5e-6, True), (1e-4, False)])
def test_a_copy_is_equal_to_six_digits_and_a_near_run_is_none(apart, copied):
    steps, values = np.arange(50), np.array(rewards(0)[:50])
    for first in (0, 1):  # from the first value on, which is looked at by itself, or from the second
        near = np.concatenate([values[:first], values[first:] * (1 + apart)])
        assert copies.same(Curve(steps, near), Curve(steps, values)) is copied


@pytest.mark.parametrize(("baseline_seed", "outcome"), [(99, Outcome.PASS), (100, Outcome.INVALID), (-1, Outcome.INVALID)])
def test_seeds_of_baselines_end_at_99(tmp_path, baseline_seed, outcome):
    base = [run_dir(tmp_path / f"seed-{seed}", seed, rewards(abs(seed))) for seed in (0, 1, 2, 3, baseline_seed)]
    assert judge([run_dir(tmp_path / "c", 101)], base, rule()).outcome is outcome


@pytest.mark.parametrize(
    ("metric", "factor", "worse"),
    [("perf/tokens_per_s", 0.5, True), ("perf/tokens_per_s", 2, False), ("perf/step_s", 2, True), ("perf/step_s", 0.5, False)],
)
def test_which_cost_is_worse(tmp_path, metric, factor, worse):
    base, run = read_run(run_dir(tmp_path / "seed-0", 0)), read_run(run_dir(tmp_path / "seed-100", 100))
    curve = run.curves[metric]
    run = replace(run, curves={**run.curves, metric: Curve(curve.steps, base.curves[metric].values * factor)})
    [found] = [item for item in resources.compare(Case([run], [base], rule())) if item.metric == metric]
    assert (found.worse, found.ratio) == (worse, pytest.approx(factor))


@pytest.mark.parametrize(("spreads", "shifted"), [(3.9, False), (4.1, True), (-4.1, True)])
def test_a_metric_is_shifted_from_four_baseline_spreads_on(tmp_path, spreads, shifted):
    runs = [read_run(run_dir(tmp_path / f"seed-{seed}", seed)) for seed in (0, 1, 2, 100)]
    steps = runs[0].steps
    means = [1.0, 1.5, 2.0, 1.5 + 0.5 * spreads]
    runs = [replace(run, curves={**run.curves, "train/entropy": Curve(steps, np.full(len(steps), mean))}) for run, mean in zip(runs, means)]
    assert bool([one for one in shifts.suspects(Case(runs[3:], runs[:3], rule())) if one.name.startswith("entropy")]) is shifted


def test_the_level_of_a_pooled_spread_counts_the_baseline_s_own_degrees_of_freedom():
    runs = [replace(EMPTY_RUN, path=Path(str(number))) for number in range(4)]
    pool = [PoolGroup(name="x", path="x", runs=3, shas=[], variance={"first": 1.0, "last": 1.0, "whole": 1.0})]
    case = Case(runs[:1], runs, rule(pooled=True), pool=pool)
    assert level_of(case) == level_per_look(4, 3, 0.05, "welch", 3 + 2)
    assert level_of(case) != level_per_look(4, 3, 0.05, "welch", 4 + 2)


@pytest.mark.parametrize(("made", "windows_of"), [(60, 60), (99, 99), (100, 100)])
def test_an_early_stop_moves_the_last_window(made, windows_of):
    case = Case([], [replace(EMPTY_RUN, steps=np.arange(made))], rule(early_stop=True))
    assert case.rule_to(np.arange(made)).planned_steps == windows_of
    assert np.flatnonzero(case.windows(np.arange(made)).last).tolist() == list(range(made - 25, made))
    assert replace(case, rule=rule()).rule_to(np.arange(made)).planned_steps == 100


def test_two_runs_of_one_seed_are_not_two_runs(tmp_path):
    """Of a declared cell: other files' seeds may be a default that nobody changed."""
    base = [run_dir(tmp_path / f"seed-{seed}", seed) for seed in range(4)]
    pair = [run_dir(tmp_path / "a", 100), run_dir(tmp_path / "b", 100, rewards(101))]
    found = judge(pair, base, rule())
    assert (found.outcome, found.headline) == (Outcome.INVALID, "b (seed 100) and a (seed 100) have one seed, 100: they are not two independent runs")
    doubled = judge(pair[:1], [*base, run_dir(tmp_path / "c", 3, rewards(50))], rule())
    assert (doubled.outcome, "baseline c (seed 3) and seed-3 have one seed" in doubled.headline) == (Outcome.INVALID, True)
    assert judge([pair[0], run_dir(tmp_path / "d", 101)], base, rule()).outcome is Outcome.PASS
