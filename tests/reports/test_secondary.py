"""Secondary statistics, pooled and paired spreads, the whole rule on the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from matrix.outcome import Outcome
from matrix.rule import JudgeRule, Secondary
from reports.checks.context import Case
from reports.checks.statistics import pool_group
from reports.cli import app
from reports.errors import ReportError
from reports.judge import judge, judge_case
from reports.model import Curve, Run
from reports.readers import read_runs
from reports.record import record
from reports.replay import replay
from reports.rules import labelled, resolve
from reports.stats.intervals import Pool, difference, paired_difference, pooled, standard_error
from reports.stats.looks import level_per_look, paired_level_per_look
from reports.stats.summary import steps_to
from reports.verdict import Declared
from tests.reports.synthetic import jsonl, rewards, rule, run_dir
from tests.reports.test_checks import edit_metrics

VOUCHED = Declared(assume_comparable=True)
STEPS = np.arange(100)


def memory(seed, values=None, **curves):
    """A run that was never a file."""
    all_curves = {"rollout/reward_mean": np.array(rewards(seed) if values is None else values)} | curves
    named = {name.replace("__", "/"): Curve(STEPS, values) for name, values in all_curves.items()}
    return Run(Path(f"seed-{seed}"), "memory", STEPS, named, manifest={"seed": seed})


BASE = [memory(seed) for seed in range(6)]


def of(verdict, statistic):
    return next(c for c in verdict.comparisons if c.statistic == statistic)


# NaN, order, constants


def test_a_value_that_is_not_finite_at_any_step_of_any_run_is_never_a_pass():
    healthy = memory(100)
    assert judge([healthy], BASE, rule(), VOUCHED).outcome is Outcome.PASS
    for step in range(100):
        for bad in (np.nan, np.inf):
            values = np.array(rewards(100))
            values[step] = bad
            assert judge([memory(100, values)], BASE, rule(), VOUCHED).outcome is Outcome.FAIL
            broken = np.array(rewards(3))
            broken[step] = bad
            assert judge([healthy], [*BASE[:3], memory(3, broken), *BASE[4:]], rule(), VOUCHED).outcome is Outcome.INVALID


# Secondary statistics


@pytest.mark.parametrize(("values", "wanted"), [([0, 1, 2, 3, 4, 5], 5), ([0, 9, 0, 0, 0, 0], 99), ([0, 0, np.nan, 9, 9, 9], np.nan), ([5, 5, 5, 0, 0, 0], 3)])
def test_steps_to_a_threshold_is_of_a_moving_mean(values, wanted):
    found = steps_to(np.array(values, dtype=float), np.arange(6), 3.1 if wanted != 5 else 3.0, 3, True, 99.0)
    assert found == pytest.approx(wanted, nan_ok=True)


def test_falling_metric_arrives_from_above():
    assert steps_to(10.0 - np.arange(10.0), np.arange(10), 5.0, 1, False, 10.0) == 6


def test_steps_to_threshold_shows_slowness_and_decides_only_where_it_gates():
    item = Secondary(name="arrival", statistic="steps_to", threshold=0.8, better="lower", delta=10.0)
    slow, wide = memory(100, rewards(100, speed=0.5)), {"delta": {"first": 0.9, "last": 0.9, "whole": 0.9}}
    shown = judge([slow], BASE, rule(secondary=[item], **wide), VOUCHED)
    assert shown.outcome is Outcome.PASS
    assert of(shown, "arrival").state == "outside" and any("not deciding: arrival" in reason for reason in shown.reasons)
    gates = judge([slow], BASE, rule(secondary=[item.model_copy(update={"gates": True})], **wide), VOUCHED)
    assert gates.outcome is Outcome.FAIL and "arrival" in gates.headline
    assert judge([memory(101)], BASE, rule(secondary=[item.model_copy(update={"gates": True})]), VOUCHED).outcome is Outcome.PASS


def test_quantile_of_the_log_prob_gap():
    def gaps(seed, scale=1.0):
        return memory(seed, train__logprob_gap_mean=scale * np.abs(np.random.default_rng(seed).normal(0.01, 0.002, 100)))

    item = Secondary(name="gap", metric="train/logprob_gap_mean", statistic="quantile", quantile=0.95, better="lower", delta=0.005, gates=True)
    base = [gaps(seed) for seed in range(6)]
    assert judge([gaps(100)], base, rule(secondary=[item], sided="one"), VOUCHED).outcome is Outcome.PASS
    found = judge([gaps(101, 3.0)], base, rule(secondary=[item], sided="one"), VOUCHED)
    assert found.outcome is Outcome.FAIL and found.comparisons[-1].metric == "train/logprob_gap_mean"
    assert judge([gaps(102, 0.1)], base, rule(secondary=[item], sided="one"), VOUCHED).outcome is Outcome.PASS


def test_a_held_out_score_recorded_now_and_then(tmp_path):
    def scored(path, seed, top):
        return edit_metrics(run_dir(path, seed), lambda step, m: m.update({"eval/heldout/score": top + 0.001 * (seed % 7)} if step % 20 == 19 else {}))

    base = [scored(tmp_path / f"seed-{seed}", seed, 0.8) for seed in range(5)]
    item = Secondary(name="heldout", metric="eval/heldout/score", better="higher", delta=0.05, gates=True)
    assert judge([scored(tmp_path / "seed-100", 100, 0.8)], base, rule(secondary=[item])).outcome is Outcome.PASS
    assert judge([scored(tmp_path / "seed-101", 101, 0.6)], base, rule(secondary=[item])).outcome is Outcome.FAIL


@pytest.mark.parametrize(("gates", "wanted"), [(True, Outcome.INVALID), (False, Outcome.PASS)])
@pytest.mark.parametrize("missing", ["candidate", "baseline"])
def test_a_secondary_metric_that_is_missing_is_a_pass_only_where_it_decides_nothing(gates, wanted, missing):
    item = Secondary(name="draft", metric="spec/accept_len", better="higher", delta=0.1, gates=gates)
    accept = {"spec__accept_len": np.linspace(1.5, 1.6, 100)}
    has = [memory(seed, spec__accept_len=accept["spec__accept_len"] + 0.01 * seed) for seed in range(6)]
    base = BASE if missing == "baseline" else has
    candidate = memory(100, **accept) if missing == "baseline" else memory(100)
    found = judge([candidate], base, rule(secondary=[item]), VOUCHED)
    assert found.outcome is wanted
    assert of(found, "draft").state == "undefined"
    assert "not recorded by every run" in of(found, "draft").text


@pytest.mark.parametrize(
    "fields",
    [{"statistic": "steps_to"}, {"statistic": "last", "threshold": 0.5}, {"statistic": "quantile"}, {"statistic": "whole", "quantile": 0.5}],
)
def test_secondary_statistics_say_what_they_need(fields):
    with pytest.raises(ValueError, match="belongs to statistic"):
        Secondary(name="x", better="higher", delta=0.1, **fields)


def test_names_of_secondary_statistics_are_their_own():
    item = Secondary(name="last", better="higher", delta=0.1)
    with pytest.raises(ValueError, match="names of their own: last"):
        rule(secondary=[item])


# Pooled spread


def test_pooled_spread_is_the_mean_variance_by_degrees_of_freedom():
    pool = pooled([(2, 4.0), (6, 1.0), (0, 99.0)])
    assert (pool.df, pool.variance) == (8, pytest.approx((2 * 4 + 6 * 1) / 8))
    assert pooled([(0, 1.0)]) is None
    baseline = np.array([1.0, 2.0, 3.0])
    se, df = standard_error(np.array([2.0]), baseline, 0.0, "welch", Pool(8.0, 3.0))
    assert df == 10
    assert se == pytest.approx(np.sqrt((2 * 1.0 + 8 * 3.0) / 10) * np.sqrt(1 + 1 / 3))


def test_a_pool_decides_what_three_runs_cannot():
    """Three baseline runs leave a healthy run undecided; the spread of two more baselines of the family tells."""
    narrow = {"delta": {"first": 0.1, "last": 0.028, "whole": 0.022}, "sd_floor": None, "max_seeds": 1}
    candidate, base = memory(100), BASE[:3]
    alone = judge([candidate], base, rule(**narrow), VOUCHED)
    case = Case([candidate], base, rule(pooled=True, **narrow), VOUCHED)
    family = [pool_group(str(k), "", [memory(seed) for seed in seeds], case) for k, seeds in enumerate((range(20, 30), range(30, 40)))]
    together = judge_case(replace(case, pool=family), 0, "")
    assert of(alone, "last").df == 2 and of(together, "last").df == 20
    assert (of(together, "whole").high - of(together, "whole").low) < (of(alone, "whole").high - of(alone, "whole").low)
    assert together.outcome is Outcome.PASS
    assert replay(together).model_dump_json() == together.model_dump_json()


def test_pool_of_the_command_line(tmp_path):
    for name, first, count in (("own", 0, 3), ("other", 20, 8)):
        runs = read_runs([run_dir(tmp_path / name / f"seed-{seed}", seed, rewards(seed)) for seed in range(first, first + count)])
        record(runs, rule(), Declared(recipe="mini"), tmp_path / "baselines", "test", name=name)
    candidate = jsonl(tmp_path / "c.jsonl", rewards(100))
    arguments = ["judge", candidate, "-b", tmp_path / "baselines" / "own", "--pool", tmp_path / "baselines" / "other", "--assume-comparable", "--json"]
    done = CliRunner().invoke(app, [str(a) for a in [*arguments, "--planned-steps", 100, "--first", 5, "--delta-first", 0.15, "--delta", 0.04]])
    verdict = json.loads(done.stdout)
    assert [group["runs"] for group in verdict["pool"]] == [8]
    assert {comparison["df"] for comparison in verdict["comparisons"]} == {9.0}
    lonely = CliRunner().invoke(app, [str(a) for a in [*arguments[:5], candidate, "--planned-steps", 100, "--delta", 0.04, "--assume-comparable"]])
    assert isinstance(lonely.exception, ReportError) and "adds nothing" in str(lonely.exception)


# Paired analysis


def test_pairs_take_the_common_part_away():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 1, 6)
    ours, theirs = shared + rng.normal(0, 0.01, 6) + 0.1, shared + rng.normal(0, 0.01, 6)
    apart, paired = difference(ours, theirs, 0.0, 0.05, "welch"), paired_difference(ours, theirs, 0.0, 0.05)
    assert paired.df == 5
    assert paired.high - paired.low < 0.05 < apart.high - apart.low


def shifted(seed, by, noise_seed, new_seed=None):
    """The curve of a seed with a change that belongs to the code, not to the seed."""
    values = np.array(rewards(seed)) + by + np.random.default_rng(noise_seed).normal(0, 0.002, 100)
    return memory(seed if new_seed is None else new_seed, values)


def test_paired_rule_compares_runs_of_one_seed():
    paired = rule(paired=True, delta={"first": 0.02, "last": 0.008, "whole": 0.008}, sd_floor=None)
    same = [shifted(seed, 0.0, 50 + seed) for seed in (0, 1, 2)]
    assert judge(same, BASE, paired, VOUCHED).outcome is Outcome.PASS
    worse = judge([shifted(seed, -0.02, 50 + seed) for seed in (0, 1, 2)], BASE, paired, VOUCHED)
    assert worse.outcome is Outcome.FAIL and of(worse, "last").n == 3 and of(worse, "last").df == 2
    one = judge(same[:1], BASE, paired, VOUCHED)
    assert one.outcome is Outcome.INCONCLUSIVE and "one pair has no spread" in "\n".join(one.reasons)
    stranger = judge([*same, memory(100)], BASE, paired, VOUCHED)
    assert stranger.outcome is Outcome.INVALID and "no baseline run of this seed" in stranger.headline


def test_level_of_pairs_holds_over_all_looks():
    rng, nights, alpha = np.random.default_rng(3), 60_000, 0.05
    apart = rng.normal(size=(nights, 3))
    level = paired_level_per_look(3, alpha)
    ever = np.zeros(nights, bool)
    for n in (2, 3):
        ever |= paired_difference(apart[:, :n], np.zeros((nights, n)), 0.0, level).low > 0
    assert ever.mean() == pytest.approx(alpha, abs=0.004)
    assert paired_level_per_look(2, alpha) == alpha


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_level_with_a_pooled_spread_holds_over_all_looks(looks):
    """Three own runs, a spread with 2 + 17 degrees of freedom."""
    rng, nights, alpha = np.random.default_rng(looks), 60_000, 0.05
    baseline, candidates = rng.normal(size=(nights, 3)), rng.normal(size=(nights, looks))
    variance = rng.chisquare(17, nights) / 17
    level, ever = level_per_look(3, looks, alpha, "larger", 19.0), np.zeros(nights, bool)
    for n in range(1, looks + 1):
        ever |= difference(candidates[:, :n], baseline, 0.0, level, "larger", Pool(17.0, variance)).low > 0
    assert ever.mean() == pytest.approx(alpha, abs=0.004)


# The rule on the command line


def test_any_field_of_the_rule_can_be_set():
    given = ["sd_floor={first: 0.01, last: 0.002, whole: 0.002}", "exactness.kl_ref_step0_max=1e-6", "early_stop=true", "windows.last=30"]
    secondary = "secondary=[{name: s, better: higher, delta: 0.1, statistic: steps_to, threshold: 0.5}]"
    made = resolve(BASE, None, {"planned_steps": 100, "delta": 0.05}, None, True, [*given, secondary]).rule
    assert (made.sd_floor.last, made.exactness.kl_ref_step0_max, made.early_stop, made.windows.last) == (0.002, 1e-6, True, 30)
    assert made.secondary[0].threshold == 0.5 and made.delta.whole == 0.05 and made.sided == "two"
    assert JudgeRule.model_validate_json(made.model_dump_json()) == made


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["sided"], "FIELD=VALUE"),
        (["sidded=one"], "sidded"),
        (["exactness.kl=1"], "exactness.kl"),
        (["alpha=: ["], "not a YAML value"),
        (["sided=three"], "sided"),
        (["paired=true", "pooled=true"], "exclude each other"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(settings, words):
    with pytest.raises(ReportError, match=words) as refused:
        resolve(BASE, None, {"planned_steps": 100, "delta": 0.05}, None, True, settings)
    assert "\n" not in str(refused.value)


def test_planned_steps_come_from_a_baseline_that_ends_together():
    short = Run(Path("s"), "memory", STEPS[:60], {"rollout/reward_mean": Curve(STEPS[:60], np.array(rewards(9)[:60]))})
    assert resolve([short], None, {"delta": 0.05}, None, True, [], BASE).rule.planned_steps == 100
    with pytest.raises(ReportError, match="--planned-steps"):
        resolve([short], None, {"delta": 0.05}, None, True, [], [*BASE, short])


def test_trajectory_alone_makes_an_exactness_rule():
    made = resolve(BASE, None, {"trajectory": (0.1, 0.01)}, None, True, [], BASE[:1]).rule
    assert (made.evidence, made.exactness.trajectory.pointwise, made.delta) == ("exactness", 0.1, None)


def test_labels_fill_what_files_do_not_say_and_never_contradict_them():
    run = labelled([memory(1)], ["science_hash=abc", "cell=x"], "--candidate-label")[0]
    assert (run.science_hash, run.labels["cell"]) == ("abc", "x")
    assert labelled([run], ["science_hash=abc"], "-")[0].science_hash == "abc"
    with pytest.raises(ReportError, match="says science_hash abc"):
        labelled([run], ["science_hash=other"], "--candidate-label")
    with pytest.raises(ReportError, match="NAME=VALUE"):
        labelled([run], ["science_hash"], "--candidate-label")


def test_a_metric_that_stays_where_it_is_can_be_judged():
    def flat(seed, level=5.0):
        return memory(seed, rollout__response_len_mean=level + np.random.default_rng(seed).normal(0, 0.05, 100) + 0.01 * (seed % 5))

    still = {"metric": "rollout/response_len_mean", "planned_steps": 100, "delta": 0.2}
    base = [flat(seed) for seed in range(6)]
    rules = [resolve(base, None, still, None, True, [f"learning={word}", "sided=two"]).rule for word in ("true", "false")]
    assert [judge([flat(100)], base, one, VOUCHED).outcome for one in rules] == [Outcome.FAIL, Outcome.PASS]
    assert judge([flat(100, 6.0)], base, rules[1], VOUCHED).outcome is Outcome.FAIL


def test_a_metric_that_could_be_two_is_named_with_its_choices():
    run = replace(memory(100), curves={}, ambiguous={"rollout/reward_mean": ("score", "score_2")})
    verdict = judge([run], BASE, rule(), VOUCHED)
    assert verdict.outcome is Outcome.INVALID and "could be score or score_2" in verdict.headline


def test_replay_of_the_command_line(tmp_path):
    files = [jsonl(tmp_path / f"{seed}.jsonl", rewards(seed)) for seed in range(5)]
    low = jsonl(tmp_path / "low.jsonl", rewards(100, plateau=0.7))
    arguments = ["judge", low, *(part for file in files for part in ("-b", file)), "--planned-steps", 100, "--delta", 0.05, "--out", tmp_path / "v.json"]
    assert CliRunner().invoke(app, [str(a) for a in arguments]).exit_code == 1
    done = CliRunner().invoke(app, ["replay", str(tmp_path / "v.json")])
    assert done.exit_code == 1 and "reproduced bit for bit" in done.output
    text = (tmp_path / "v.json").read_text()
    value = json.loads(text)["candidates"][0]["curve"]["values"][50]
    (tmp_path / "v.json").write_text(text.replace(str(value), "0.5", 1))
    assert isinstance(CliRunner().invoke(app, ["replay", str(tmp_path / "nothing.json")]).exception, ReportError)
    edited = CliRunner().invoke(app, ["replay", str(tmp_path / "v.json")])
    assert isinstance(edited.exception, ReportError) and "not reproduced" in str(edited.exception)
