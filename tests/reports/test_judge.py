"""Every outcome from files."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from matrix.outcome import Outcome
from matrix.rule import Exactness, Margins, Windows
from reports.checks.context import origin
from reports.errors import ReportError
from reports.judge import judge
from reports.model import Curve, Run
from reports.verdict import Declared, read_verdict
from tests.reports.synthetic import CELL, SCIENCE, jsonl, rewards, rule, run_dir, sync_event

DECLARED = Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE, reward_id="exact-match/1", reward_range=(0.0, 1.0))
BANDS = Exactness(step0_logprob_gap_max=1e-3, logprob_gap_mean_max=1e-4, nll_minus_entropy_z_max=5.0)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    root = tmp_path_factory.mktemp("baseline")
    return [run_dir(root / f"seed-{seed}", seed) for seed in range(8)]


def verdict_of(path, baseline, declared=DECLARED, looks_done=0, **changes):
    return judge(path if isinstance(path, list) else [path], baseline, rule(**({"exactness": BANDS} | changes)), declared, looks_done)


def reasons(verdict):
    return "\n".join(verdict.reasons)


@pytest.mark.parametrize("seed", [100, 101, 102, 103])
def test_healthy_candidate_passes_alone(tmp_path, baseline, seed):
    verdict = verdict_of(run_dir(tmp_path / f"seed-{seed}", seed), baseline)
    assert verdict.outcome is Outcome.PASS, verdict.reasons
    assert {c.state for c in verdict.comparisons} == {"inside"}
    assert [(c.n, c.B) for c in verdict.comparisons] == [(1, 8)] * 4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (rewards(100, plateau=0.80), "last window"),
        (rewards(100, speed=0.5), "whole curve"),
        ([0.5 + v * 0.4 for v in rewards(100)], "first window"),
        ([0.36] * 50 + [0.34, 0.38] * 25, "learning is more than"),
        ([*rewards(100)[:92], 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5, 0.5], "its own best window"),
        (rewards(100, noise=8), "noise within a run"),
    ],
    ids=["plateau", "slow", "start", "flat", "late collapse", "noisy"],
)
def test_broken_training_fails_alone(tmp_path, baseline, values, words):
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100, values), baseline)
    assert verdict.outcome is Outcome.FAIL
    assert words in reasons(verdict)


def scored(path, seed, score):
    """A run of 100 steps with eval/heldout/score after every fifth, whose i-th value is score(i, rewards there)."""
    run = run_dir(path, seed)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for index, line in enumerate(lines[4::5]):
        line["metrics"]["eval/heldout/score"] = score(index, line["metrics"]["rollout/reward_mean"])
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.mark.parametrize(
    ("score", "wanted", "words"),
    [
        (lambda index, reward: reward, Outcome.PASS, "equivalent"),
        (lambda index, reward: 0.4, Outcome.FAIL, "learning is more than"),
        (lambda index, reward: reward if index < 17 else 0.5, Outcome.FAIL, "its own best window"),
    ],
    ids=["healthy", "flat", "late collapse"],
)
def test_a_metric_recorded_every_fifth_step_is_held_to_the_whole_rule(tmp_path, score, wanted, words):
    base = [scored(tmp_path / f"seed-{seed}", seed, lambda index, reward: reward) for seed in range(8)]
    changes = {"metric": "eval/heldout/score", "windows": Windows(first=25, last=30), "delta": Margins(first=0.15, last=0.1, whole=0.1)}
    verdict = verdict_of(scored(tmp_path / "seed-100", 100, score), base, **changes)
    assert verdict.outcome is wanted, verdict.reasons
    assert {check.name for check in verdict.checks} >= {"learning", "collapse"}
    assert words in reasons(verdict) or wanted is Outcome.PASS


def test_better_fails_two_sided_and_is_flagged_one_sided(tmp_path, baseline):
    run = run_dir(tmp_path / "seed-100", 100, rewards(100, plateau=0.99))
    assert verdict_of(run, baseline).outcome is Outcome.FAIL
    verdict = verdict_of(run, baseline, sided="one")
    assert verdict.outcome is Outcome.PASS
    assert "check reward and data" in reasons(verdict)
    assert verdict.comparisons[1].margin_high is None


def test_near_the_margin_is_undecided_until_the_last_look(tmp_path, baseline):
    runs = [run_dir(tmp_path / f"seed-{seed}", seed, rewards(seed, plateau=0.906)) for seed in (100, 101, 102)]
    first = verdict_of(runs[:1], baseline)
    assert (first.outcome, first.last_look, first.look) == (Outcome.INCONCLUSIVE, False, 1)
    assert "add a seed" in reasons(first)
    third = verdict_of(runs, baseline, looks_done=2)
    assert (third.outcome, third.last_look, third.look) == (Outcome.INCONCLUSIVE, True, 3)
    assert "no look is left" in reasons(third)


@pytest.mark.parametrize("step", [0, 3, 50, 99])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_anywhere_is_never_a_pass(tmp_path, baseline, step, value):
    values = rewards(100)
    values[step] = value
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100, values), baseline)
    assert verdict.outcome is Outcome.FAIL
    assert f"at step {step}" in verdict.headline
    assert verdict.suspects[0].name == "numerics of the trainer"


@pytest.mark.parametrize("step", [0, 50, 99])
def test_nan_in_the_baseline_is_invalid(tmp_path, baseline, step):
    values = rewards(50)
    values[step] = float("nan")
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100), [*baseline, run_dir(tmp_path / "seed-50", 50, values)])
    assert verdict.outcome is Outcome.INVALID


def test_short_run_is_incomplete_and_says_how_far_it_came(tmp_path, baseline):
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100, rewards(100)[:57]), baseline)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "57/100" in verdict.headline
    assert verdict.comparisons == []


def test_a_hole_in_the_steps_is_incomplete(tmp_path, baseline):
    run = run_dir(tmp_path / "seed-100", 100)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:40] + lines[42:]))
    verdict = verdict_of(run, baseline)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "40–41" in verdict.headline


def test_more_steps_than_planned_is_invalid(tmp_path, baseline):
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100, rewards(100, 120)), baseline)
    assert verdict.outcome is Outcome.INVALID


def test_run_lost_to_the_machine_is_infra(tmp_path, baseline):
    run = run_dir(tmp_path / "seed-100", 100, rewards(100)[:57])
    (run / "runner.json").write_text('{"infra_class": "disk-full"}')
    assert verdict_of(run, baseline).outcome is Outcome.INFRA


def test_early_stop_counts_only_where_the_recipe_allows_it(tmp_path, baseline):
    run = run_dir(tmp_path / "seed-100", 100, rewards(100)[:80])
    with (run / "events.jsonl").open("a") as out:
        out.write('{"event": "early_stop", "reason": "target reached"}\n')
    assert verdict_of(run, baseline).outcome is Outcome.INCOMPLETE
    assert verdict_of(run, baseline, early_stop=True).outcome is Outcome.PASS


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"not a run\n"])
def test_files_that_hold_no_curve_are_invalid_not_skipped(tmp_path, baseline, content):
    file = tmp_path / "golden.jsonl"
    file.write_bytes(content)
    assert verdict_of([file, run_dir(tmp_path / "seed-100", 100)], baseline).outcome is Outcome.INVALID
    assert verdict_of(run_dir(tmp_path / "seed-101", 101), [*baseline, file]).outcome is Outcome.INVALID


def test_metric_that_is_missing_is_never_a_pass(tmp_path, baseline):
    file = jsonl(tmp_path / "a.jsonl", rewards(100), metric="bonus")
    verdict = judge([file], baseline, rule(), Declared(assume_comparable=True))
    assert verdict.outcome is Outcome.INVALID
    assert "rollout/reward_mean is not recorded (recorded: bonus)" in reasons(verdict)


def test_metric_missing_at_one_step_is_never_a_pass(tmp_path, baseline):
    run = run_dir(tmp_path / "seed-100", 100)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[40] = lines[40].replace("rollout/reward_mean", "rollout/reward_median")
    (run / "metrics.jsonl").write_text("".join(lines))
    verdict = verdict_of(run, baseline)
    assert verdict.outcome is Outcome.INVALID
    assert "missing at step 40" in verdict.headline


def test_no_baseline_and_one_run(tmp_path, baseline):
    run = run_dir(tmp_path / "seed-100", 100)
    none = verdict_of(run, None)
    assert (none.outcome, none.descriptive) == (Outcome.NO_BASELINE, False)
    one = verdict_of(run, baseline[:1])
    assert (one.outcome, one.descriptive) == (Outcome.NO_BASELINE, True)
    assert "not a distribution" in reasons(one)
    assert {c.state for c in one.comparisons} == {"descriptive"}


def test_broken_run_fails_also_without_a_baseline(tmp_path):
    flat = run_dir(tmp_path / "seed-100", 100, [0.36, 0.34] * 50)
    assert verdict_of(flat, None).outcome is Outcome.FAIL


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_flat_curves_never_pass_even_against_their_own_kind(tmp_path, constant):
    """Goldens of zeros: equal to the candidate, and worth nothing."""
    base = [jsonl(tmp_path / f"{n}.jsonl", [constant] * 100) for n in range(3)]
    verdict = judge([jsonl(tmp_path / "c.jsonl", [constant] * 100)], base, rule())
    assert verdict.outcome is not Outcome.PASS


def test_exactness_recipe_passes_without_baseline_and_says_what_it_is(tmp_path):
    run = run_dir(tmp_path / "seed-100", 100, rewards(100)[:3])
    verdict = verdict_of(run, None, evidence="exactness", planned_steps=3, windows=Windows(first=1, last=1), delta=None)
    assert verdict.title == "PASS (exactness)"
    assert "no statement about convergence" in verdict.headline


def test_exactness_recipe_without_any_band_proves_nothing(tmp_path):
    run = run_dir(tmp_path / "seed-100", 100, rewards(100)[:3])
    bands = Exactness(weight_digests=False)
    verdict = verdict_of(run, None, evidence="exactness", planned_steps=3, windows=Windows(first=1, last=1), delta=None, exactness=bands)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline


def test_restart_is_reported_and_does_not_decide(tmp_path, baseline):
    run = run_dir(tmp_path / "seed-100", 100)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    stale = [line.replace('"rollout/truncated_frac": 0.0', '"rollout/truncated_frac": 0.5') for line in lines[60:70]]
    (run / "metrics.jsonl").write_text("".join(lines[:60] + stale + lines[60:]))
    verdict = verdict_of(run, baseline)
    assert verdict.outcome is Outcome.PASS
    assert any("restarted at step 60" in note.text for note in verdict.candidates[0].notes)


def test_verdict_survives_its_file(tmp_path, baseline):
    values = rewards(100)
    values[5] = float("nan")
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100, values), baseline)
    path = verdict.write(tmp_path / "verdicts")
    assert path.parent.name == "verdicts"
    read = read_verdict(path)
    assert read.outcome is Outcome.FAIL
    assert np.isnan(read.candidates[0].curve.values[5])
    assert read.model_dump_json() == verdict.model_dump_json()


def test_numbers_of_the_verdict_can_be_recomputed_from_it(tmp_path, baseline):
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100), baseline)
    ours, theirs = ([np.array(run.curve.values) for run in side] for side in (verdict.candidates, verdict.baseline))
    last = next(c for c in verdict.comparisons if c.statistic == "last")
    assert last.difference == pytest.approx(ours[0][75:].mean() - np.mean([values[75:].mean() for values in theirs]))
    assert last.low < last.difference < last.high


def test_lower_is_better_where_the_recipe_says_so(tmp_path):
    def loss(seed, plateau=0.93):
        return [2 - value for value in rewards(seed, plateau=plateau)]

    base = [jsonl(tmp_path / f"{seed}.jsonl", loss(seed)) for seed in range(6)]
    lower = rule(better="lower", sided="one")
    assert judge([jsonl(tmp_path / "a.jsonl", loss(100))], base, lower).outcome is Outcome.PASS
    assert judge([jsonl(tmp_path / "b.jsonl", loss(101, 0.99))], base, lower).outcome is Outcome.PASS
    assert judge([jsonl(tmp_path / "c.jsonl", loss(102, 0.85))], base, lower).outcome is Outcome.FAIL


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(6)), constant=st.sampled_from([-3.0, 0.0, 0.25, 10.0]), plateau=st.sampled_from([0.93, 0.905, 0.85]))
def test_order_of_runs_and_a_common_constant_change_no_verdict(tmp_path_factory, order, constant, plateau):
    root = tmp_path_factory.mktemp("runs")

    def verdict(shift, seeds):
        base = [jsonl(root / f"b{shift}-{seed}.jsonl", [v + shift for v in rewards(seed)]) for seed in seeds]
        return judge([jsonl(root / f"c{shift}.jsonl", [v + shift for v in rewards(100, plateau=plateau)])], base, rule())

    one, two = verdict(0.0, range(6)), verdict(constant, order)
    assert one.outcome is two.outcome
    assert [c.state for c in one.comparisons] == [c.state for c in two.comparisons]


def test_no_candidates_is_an_error(baseline):
    with pytest.raises(ValueError, match="nothing to judge"):
        judge([], baseline, rule())


def test_sync_events_are_read(tmp_path, baseline):
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100), baseline, exactness=Exactness())
    assert any(check.text == "seed-100: digests match in all 101 weight syncs" for check in verdict.checks)
    assert sync_event(1)["received"] == "digest"


def test_margin_of_the_residual_is_optional(tmp_path, baseline):
    verdict = verdict_of(run_dir(tmp_path / "seed-100", 100), baseline, delta=Margins(first=0.1, last=0.03, whole=0.025))
    assert [c.statistic for c in verdict.comparisons] == ["first", "last", "whole"]


def curve_run(steps, values):
    steps = np.array(steps, dtype=np.int64)
    return Run(Path("x"), "memory", steps, {"rollout/reward_mean": Curve(steps, np.array(values, dtype=float))})


def scaled(factor, seeds):
    return [curve_run(range(100), np.array(rewards(seed)) * factor) for seed in seeds]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("candidate", "base", "changes", "wanted"),
    [
        (scaled(1e308, [100]), scaled(1.0, range(4)), {}, Outcome.INCONCLUSIVE),
        (scaled(1.0, [100]), scaled(1e308, range(4)), {}, Outcome.INVALID),
        (scaled(1e-300, [100]), scaled(1e-300, range(4)), {}, Outcome.INCONCLUSIVE),
        ([curve_run([], [])], scaled(1.0, range(4)), {}, Outcome.INVALID),
        ([curve_run([0], [0.5])], scaled(1.0, range(4)), {}, Outcome.INCOMPLETE),
        (scaled(1.0, [100]), [curve_run([0], [0.5]), curve_run([0], [0.6])], {}, Outcome.INVALID),
        (scaled(-1.0, [100]), scaled(-1.0, range(5)), {"better": "lower"}, Outcome.PASS),
        (scaled(1.0, range(100, 105)), scaled(1.0, range(5)), {}, Outcome.PASS),
        ([curve_run(range(0, 100, 2), rewards(100)[::2])], [curve_run(range(1, 100, 2), rewards(seed)[1::2]) for seed in range(4)], {}, Outcome.INCONCLUSIVE),
    ],
    ids=["overflow", "baseline overflows", "underflow", "no step", "one step", "baseline of one step", "falling", "five", "no common step"],
)
def test_odd_curves_are_judged_without_a_traceback_or_a_pass(candidate, base, changes, wanted):
    verdict = judge(candidate, base, rule(**changes), Declared(assume_comparable=True))
    assert verdict.outcome is wanted, verdict.reasons


def test_steps_counted_in_tokens_take_no_memory_by_the_token():
    far = np.arange(100) * 10**9
    runs = [curve_run(far, rewards(seed)) for seed in (100, 0, 1, 2, 3)]
    changes = {"planned_steps": 100 * 10**9, "windows": Windows(first=5 * 10**9, last=25 * 10**9)}
    assert judge(runs[:1], runs[1:], rule(**changes), Declared(assume_comparable=True)).outcome is Outcome.PASS
    with pytest.raises(ReportError, match="counted in the curves' unit"):
        judge(scaled(1.0, [100]), scaled(1.0, range(3)), rule(**changes), Declared(assume_comparable=True))


def test_an_early_stop_before_the_windows_are_apart_is_incomplete(tmp_path, baseline):
    run = run_dir(tmp_path / "seed-100", 100, rewards(100)[:20])
    with (run / "events.jsonl").open("a") as out:
        out.write('{"event": "early_stop", "reason": "target reached"}\n')
    verdict = verdict_of(run, baseline, early_stop=True)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "before first and last window are apart" in verdict.headline


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -0.1])
def test_a_margin_is_a_finite_positive_number(value):
    with pytest.raises(ValueError, match="delta"):
        rule(delta={"first": 0.1, "last": value, "whole": 0.1})


def test_eight_runs_of_a_thousand_steps_are_judged_in_milliseconds():
    """500 cells in 5 s on two cores is 20 ms a cell on one; four times that is left for a busy machine."""
    steps = np.arange(1000)
    runs = [curve_run(steps, 0.4 + 0.5 * (1 - np.exp(-steps / 100)) + np.random.default_rng(k).normal(0, 0.02, 1000)) for k in range(8)]
    long = rule(planned_steps=1000, windows=Windows(first=100, last=250))
    judge(runs[:3], runs[3:], long, Declared(assume_comparable=True))
    begin = time.process_time()
    for _ in range(20):
        judge(runs[:3], runs[3:], long, Declared(assume_comparable=True))
    assert (time.process_time() - begin) / 20 < 0.08


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (range(5), 0),
        (range(1, 6), 1),
        ([20, 40, 60], 1),
        ([19, 39, 59], 0),
        ([1, 5, 10, 15], 1),
        ([0, 20, 40], 0),
        ([7, 8, 9], 0),
        ([], 0),
        ([12288, 24576], 1),
    ],
)
def test_where_a_run_counts_from(steps, wanted):
    assert origin(np.array(steps, dtype=np.int64)) == wanted


@pytest.mark.parametrize("steps", [range(20, 401, 20), range(19, 400, 20), range(0, 400, 20), [1, *range(20, 401, 20)]])
def test_a_log_at_every_twentieth_step_is_whole_wherever_it_begins(steps):
    steps = np.array(steps)
    runs = [curve_run(steps, np.array(rewards(seed, 400, speed=0.5))[steps - 1]) for seed in (100, 0, 1, 2, 3, 4)]
    sparse = rule(planned_steps=400, windows=Windows(first=60, last=100), delta=Margins(first=0.15, last=0.1, whole=0.1), sd_floor=None)
    verdict = judge(runs[:1], runs[1:], sparse, Declared(assume_comparable=True))
    assert verdict.outcome is Outcome.PASS, verdict.reasons
    short = judge([curve_run(steps[:-3], runs[0].curves["rollout/reward_mean"].values[:-3])], runs[1:], sparse, Declared(assume_comparable=True))
    assert short.outcome is Outcome.INCOMPLETE
