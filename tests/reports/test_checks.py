"""Integrity, copies, bands and suspects, one fault at a time."""

import json

import numpy as np
import pytest

from matrix.outcome import Outcome
from matrix.rule import Exactness
from reports.checks.shifts import SIGNS
from reports.judge import judge
from reports.verdict import Declared
from tests.reports.synthetic import CELL, REWARD, SCIENCE, jsonl, rewards, rule, run_dir, sync_event

DECLARED = Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE, reward_id="exact-match/1", reward_range=(0.0, 1.0))


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    root = tmp_path_factory.mktemp("baseline")
    return [run_dir(root / f"seed-{seed}", seed) for seed in range(6)]


def labels(**changes):
    return {"cell": CELL, "recipe": "spell-backward", "science_hash": SCIENCE, "reward": REWARD} | changes


def outcome(run, baseline, declared=DECLARED, **bands):
    verdict = judge([run], baseline, rule(exactness=Exactness(**({"weight_digests": False} | bands))), declared)
    return verdict.outcome, "\n".join(verdict.reasons), [suspect.name for suspect in verdict.suspects]


def edit_metrics(run, change):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        change(record["step"], record["metrics"])
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"labels": labels(science_hash="b" * 64)}, "the declared recipe has"),
        ({"labels": labels(science_hash=None)}, "science hash none"),
        ({"labels": labels(reward={"id": "exact-match/2", "range": [0.0, 1.0]})}, "another definition or scale"),
        ({"labels": labels(reward={"id": "exact-match/1", "range": [0.0, 2.0]})}, "another definition or scale"),
        ({"labels": labels(reward=None)}, "another definition or scale"),
        ({"seed": 7}, "candidates take seeds from 100 up"),
        ({"seed": None}, "candidates take seeds from 100 up"),
    ],
)
def test_what_is_not_comparable_is_invalid(tmp_path, baseline, given, words):
    found, reasons, _ = outcome(run_dir(tmp_path / "r", 100, **given), baseline)
    assert found is Outcome.INVALID
    assert words in reasons


def test_reward_outside_its_declared_range_is_another_scale(tmp_path, baseline):
    found, reasons, _ = outcome(run_dir(tmp_path / "r", 100, [2 * value for value in rewards(100)]), baseline)
    assert found is Outcome.INVALID
    assert "another scale or definition" in reasons


def test_recipe_changed_since_the_baseline_is_stale_not_red(tmp_path, baseline):
    changed = DECLARED.model_copy(update={"science_hash": "c" * 64})
    run = run_dir(tmp_path / "r", 100, labels=labels(science_hash="c" * 64))
    verdict = judge([run], baseline, rule(), changed)
    assert (verdict.outcome, verdict.stale) == (Outcome.NO_BASELINE, True)


def test_runs_without_hash_need_the_callers_word(tmp_path, baseline):
    file = jsonl(tmp_path / "a.jsonl", rewards(100))
    assert judge([file], baseline, rule()).outcome is Outcome.INVALID
    assert judge([file], baseline, rule(), Declared(assume_comparable=True)).outcome is Outcome.PASS


def test_baseline_with_a_candidates_seed_is_invalid(tmp_path, baseline):
    found, reasons, _ = outcome(run_dir(tmp_path / "r", 100), [*baseline, run_dir(tmp_path / "seed-150", 150)])
    assert found is Outcome.INVALID
    assert "baselines take seeds 0 to 99" in reasons


@pytest.mark.parametrize("claim", [{"seed": 101}, {"host": {"hostname": "another-machine"}}, {"commit": "f" * 40}, {}])
def test_copies_are_flagged_whatever_they_claim(tmp_path, baseline, claim):
    runs = [run_dir(tmp_path / "a", 100), run_dir(tmp_path / "b", 100, **claim)]
    verdict = judge(runs, baseline, rule(), DECLARED)
    assert verdict.outcome is Outcome.INVALID
    assert "a copy is no second measurement" in verdict.headline


def test_copy_of_a_baseline_run_under_another_seed_is_flagged(tmp_path, baseline):
    found, reasons, _ = outcome(run_dir(tmp_path / "r", 100, rewards(3)), baseline)
    assert found is Outcome.INVALID
    assert "seed 100 and 3" in reasons


def test_reexported_copy_with_fewer_digits_is_flagged(tmp_path):
    base = [jsonl(tmp_path / f"{seed}.jsonl", [value * 1.0001 for value in rewards(seed)]) for seed in range(3)]
    verdict = judge([jsonl(tmp_path / "c.jsonl", [float(f"{value * 1.0001:.6g}") for value in rewards(1)])], base, rule())
    assert verdict.outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("bands", "change", "words"),
    [
        ({"step0_logprob_gap_max": 1e-3}, lambda step, m: m.update({"train/logprob_gap_max": 0.2} if step == 0 else {}), "at step 0"),
        ({"logprob_gap_mean_max": 1e-4}, lambda step, m: m.update({"train/logprob_gap_mean": 0.01} if step == 70 else {}), "step 70"),
        ({"kl_ref_step0_max": 1e-6}, lambda step, m: m.update({"train/kl_ref": 0.1}), "KL to the reference is 0.1"),
        ({"nll_minus_entropy_z_max": 5.0}, lambda step, m: m.update({"rollout/nll_minus_entropy_z": -1.5}), "15.00 standard errors"),
    ],
)
def test_bands(tmp_path, baseline, bands, change, words):
    found, reasons, _ = outcome(edit_metrics(run_dir(tmp_path / "r", 100), change), baseline, **bands)
    assert found is Outcome.FAIL
    assert words in reasons


@pytest.mark.parametrize(
    ("bands", "metric"),
    [
        ({"step0_logprob_gap_max": 1e-3}, "train/logprob_gap_max"),
        ({"logprob_gap_mean_max": 1e-4}, "train/logprob_gap_mean"),
        ({"kl_ref_step0_max": 1e-6}, "train/kl_ref"),
        ({"nll_minus_entropy_z_max": 5.0}, "rollout/nll_minus_entropy_z"),
    ],
)
@pytest.mark.parametrize("where", ["everywhere", "at the first step"])
def test_a_band_whose_metric_is_missing_is_never_a_pass(tmp_path, baseline, bands, metric, where):
    run = edit_metrics(run_dir(tmp_path / "r", 100), lambda step, m: m.pop(metric, None) if where == "everywhere" or step == 0 else None)
    found, reasons, _ = outcome(run, baseline, **bands)
    assert found is Outcome.INVALID
    assert "a missing metric is never a pass" in reasons


@pytest.mark.parametrize("bands", [{"step0_logprob_gap_max": 1e-3}, {"logprob_gap_mean_max": 1e-4}, {"nll_minus_entropy_z_max": 5.0}])
@pytest.mark.parametrize("step", [0, 40])
def test_nan_in_a_banded_metric_is_never_a_pass(tmp_path, baseline, bands, step):
    names = {
        "step0_logprob_gap_max": "train/logprob_gap_max",
        "logprob_gap_mean_max": "train/logprob_gap_mean",
        "nll_minus_entropy_z_max": "rollout/nll_minus_entropy_z",
    }
    name = names[next(iter(bands))]
    if name == "train/logprob_gap_max" and step:
        step = 0  # only the first step is banded
    run = edit_metrics(run_dir(tmp_path / "r", 100), lambda at, m: m.update({name: float("nan")} if at == step else {}))
    assert outcome(run, baseline, **bands)[0] is Outcome.FAIL


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([sync_event(1), sync_event(2)], Outcome.PASS),
        ([sync_event(1, held={"method": "probe", "tensors": 26})], Outcome.PASS),
        ([], Outcome.INVALID),
        ([{"event": "start"}], Outcome.INVALID),
        ([sync_event(1), sync_event(2, digest="")], Outcome.FAIL),
        ([sync_event(1, tensors=0)], Outcome.FAIL),
        ([sync_event(1, received=None)], Outcome.FAIL),
        ([sync_event(1, held={"tensors": 26})], Outcome.FAIL),
    ],
)
def test_weight_digests(tmp_path, baseline, events, wanted):
    run = run_dir(tmp_path / "r", 100)
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert outcome(run, baseline, weight_digests=True)[0] is wanted


def low(**more):
    return {"values": rewards(100, plateau=0.8)} | more


@pytest.mark.parametrize(
    ("make", "change", "wanted"),
    [
        (low(gap=0.1), None, "inference or weight conversion"),
        (low(gap_after=0.01), None, "weight sync"),
        (low(), None, "trainer, data or reward"),
        (low(), lambda step, m: m.update({"rollout/nll_minus_entropy_z": 2.0}), "sampling"),
        (low(), lambda step, m: m.update({"train/lr": 5e-5}), "learning rate"),
        (low(), lambda step, m: m.update({"rollout/reward_error_count": 30.0}), "reward"),
        (low(), lambda step, m: m.update({"train/grad_norm": 9.0}), "gradient: scale, clipping or reduction over ranks"),
        (low(), lambda step, m: m.update({"train/entropy": 9.0}), "entropy: sampling temperature, entropy term or collapse of the policy"),
        (low(), lambda step, m: m.update({"rollout/response_len_mean": 9.0}), "length of answers: stop ids, length limit or prompt template"),
        (low(), lambda step, m: m.update({"rollout/truncated_frac": 0.4}), "end of answers: stop ids or length limit"),
        (low(), lambda step, m: m.update({"perf/step_s": 0.6}), "performance"),
        (low(), lambda step, m: m.pop("train/logprob_gap_mean"), "unknown"),
        ({"values": rewards(100)[:90] + [0.5] * 10}, None, "late collapse"),
        (
            {"values": [max(0.0, 0.36 - 0.01 * step) for step in range(100)]},
            None,
            "direction of the update: sign of the advantage, or rewards paired with the wrong answers",
        ),
        ({"values": [0.6 + 0.35 * value for value in rewards(100)]}, None, "start of the run: weights, prompts or sampling"),
    ],
)
def test_suspects(tmp_path, baseline, make, change, wanted):
    run = run_dir(tmp_path / "r", 100, **make)
    found, _, suspects = outcome(edit_metrics(run, change) if change else run, baseline)
    assert found is Outcome.FAIL
    assert wanted in suspects
    assert suspects[0] == wanted or wanted in [*SIGNS.values(), "performance"]


def test_suspects_of_metrics_a_baseline_must_have(tmp_path):
    """KL and accept length are compared where both sides record them; the most shifted stands first, with its strength."""

    def with_metrics(path, seed, **found):
        values = rewards(seed, plateau=0.8) if found else rewards(seed)
        noise = np.random.default_rng(seed).normal(1, 0.02, 100).tolist()
        healthy = {"train/kl_ref": 0.01, "train/ppo_kl": 0.001, "spec/accept_len": 1.8} | found
        return edit_metrics(run_dir(path, seed, values), lambda step, m: m.update({name: value * noise[step] for name, value in healthy.items()}))

    base = [with_metrics(tmp_path / f"seed-{seed}", seed) for seed in range(5)]
    run = with_metrics(tmp_path / "seed-100", 100, **{"train/kl_ref": 0.2, "train/ppo_kl": 0.0011, "spec/accept_len": 1.0})
    verdict = judge([run], base, rule(), DECLARED)
    shifted = [suspect for suspect in verdict.suspects if suspect.name in SIGNS.values()]
    assert [s.name for s in shifted][:2] == [SIGNS["train/kl_ref"], SIGNS["spec/accept_len"]]
    assert "0.2" in shifted[0].evidence and shifted[0].strength > shifted[1].strength > 4


def test_digest_mismatch_and_gap_are_ranked_before_what_they_cause(tmp_path, baseline):
    run = edit_metrics(run_dir(tmp_path / "r", 100, rewards(100, plateau=0.8), gap_after=0.01), lambda step, m: m.update({"train/grad_norm": 9.0}))
    (run / "events.jsonl").write_text(json.dumps(sync_event(1, digest="")) + "\n")
    _, _, suspects = outcome(run, baseline, weight_digests=True)
    assert suspects[0] == "weight sync"
    assert SIGNS["train/grad_norm"] in suspects


def test_error_event_names_its_stage(tmp_path, baseline):
    run = run_dir(tmp_path / "r", 100, rewards(100)[:30])
    with (run / "events.jsonl").open("a") as out:
        out.write(json.dumps({"event": "error", "stage": "weight sync", "text": "lm_head: engine 0 holds another digest"}) + "\n")
    found, reasons, suspects = outcome(run, baseline)
    assert found is Outcome.INCOMPLETE
    assert "lm_head" in reasons
    assert suspects[0] == "weight sync"


def test_slower_but_equal_passes_with_a_word_about_performance(tmp_path, baseline):
    run = edit_metrics(run_dir(tmp_path / "r", 100), lambda step, m: m.update({"perf/step_s": 0.6}))
    found, _, suspects = outcome(run, baseline)
    assert (found, suspects) == (Outcome.PASS, ["performance"])
