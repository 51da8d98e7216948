"""Faults of harnesses that users have met, one test a fault: what a gate must say of such files. (Declarations: tests/matrix; running: tests/e2e.)"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from matrix.outcome import Outcome
from matrix.rule import Margins
from reports.errors import ReportError
from reports.judge import judge
from reports.readers import read_or_note, read_run, read_runs
from reports.record import record
from reports.verdict import Declared, Verdict
from tests.reports.synthetic import CELL, SCIENCE, jsonl, rewards, rule, run_dir

DECLARED = Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE, reward_id="exact-match/1", reward_range=(0.0, 1.0))


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("baseline")
    return [run_dir(root / f"seed-{seed}", seed) for seed in range(8)]


def verdict_of(runs: list[Path], baseline: list[Path], **changes: object) -> Verdict:
    return judge(runs, baseline, rule(**changes), DECLARED)


def words(verdict: Verdict) -> str:
    return "\n".join(verdict.reasons)


def test_a_short_run_never_ends_green_and_shows_how_far_it_came(tmp_path: Path, baseline: list[Path]):
    verdict = verdict_of([run_dir(tmp_path / "seed-100", 100, rewards(100)[:68])], baseline)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert verdict.outcome.exit_code == 11
    assert "68/100" in words(verdict)


@pytest.mark.parametrize("unlucky", [0.80, 1.0])
def test_one_unlucky_last_step_does_not_fail_a_good_run(tmp_path: Path, baseline: list[Path], unlucky: float):
    assert verdict_of([run_dir(tmp_path / "seed-100", 100, [*rewards(100)[:-1], unlucky])], baseline).outcome is Outcome.PASS


def test_the_spread_is_that_between_runs_not_that_within_one(tmp_path: Path):
    """Runs that are smooth in themselves and far apart: the standard error within a run would call every one of them different."""
    apart = [0.02 * (index - 3.5) for index in range(8)]
    runs = [
        run_dir(tmp_path / f"seed-{index}", index, [value + shift for value in rewards(index, plateau=0.8, noise=0.1)]) for index, shift in enumerate(apart)
    ]
    verdict = verdict_of([run_dir(tmp_path / "seed-100", 100, [value + 0.05 for value in rewards(100, plateau=0.8, noise=0.1)])], runs)
    last = next(comparison for comparison in verdict.comparisons if comparison.statistic == "last")
    assert last.se is not None and last.se > 0.03
    assert last.se == pytest.approx(np.std(last.baseline, ddof=1) * np.sqrt(1 + 1 / 8), rel=1e-6)
    assert verdict.outcome is Outcome.INCONCLUSIVE


def test_two_runs_of_one_recipe_that_end_far_apart_are_no_pass(tmp_path: Path, baseline: list[Path]):
    runs = [run_dir(tmp_path / "seed-100", 100), run_dir(tmp_path / "seed-101", 101, rewards(101, plateau=0.5))]
    verdict = verdict_of(runs, baseline)
    assert verdict.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE)
    near = [run_dir(tmp_path / "near" / "seed-100", 100, rewards(100, plateau=0.905))]
    undecided = verdict_of(near, baseline)
    assert undecided.outcome is Outcome.INCONCLUSIVE
    assert "add a seed" in words(undecided)


def recorded_every(run: Path, steps: int) -> Path:
    """The run with its reward on every so-many-th step only."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record_ in records:
        if record_["step"] % steps:
            del record_["metrics"]["rollout/reward_mean"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record_) + "\n" for record_ in records))
    return run


@pytest.mark.parametrize(("every", "common", "outcome"), [(3, 34, Outcome.PASS), (40, 3, Outcome.INCONCLUSIVE)])
def test_different_step_grids_are_compared_on_their_common_steps_and_too_few_decide_nothing(tmp_path: Path, every: int, common: int, outcome: Outcome):
    thin = [recorded_every(run_dir(tmp_path / f"seed-{seed}", seed), every) for seed in range(8)]
    verdict = verdict_of([run_dir(tmp_path / "seed-101", 101)], thin)
    assert (verdict.outcome, verdict.common_steps) == (outcome, common), verdict.reasons
    assert f"{common} common steps are too few" in words(verdict) or f"compared on the {common} steps that all runs share" in words(verdict)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no step"),
        ("".join(json.dumps({"step": step, "metrics": {"rollout/reward_mean": 0.0}}) + "\n" for step in range(100)), ""),
        (
            "".join(json.dumps({"step": step, "metrics": {"rollout/reward_mean": "nan"}}) + "\n" for step in range(100)),
            "is nan at step 0, the first of 100 such steps",
        ),
    ],
    ids=["zero bytes", "zeros", "nan text"],
)
def test_a_golden_of_nothing_zeros_or_nan_is_never_a_reference(tmp_path: Path, text: str, said: str):
    golden = tmp_path / "golden"
    golden.mkdir()
    for seed in range(3):
        run_dir(golden / f"seed-{seed}", seed)
        (golden / f"seed-{seed}" / "metrics.jsonl").write_text(text)
    runs = sorted(golden.iterdir())
    candidate = run_dir(tmp_path / "seed-100", 100)
    (candidate / "metrics.jsonl").write_text(text or (candidate / "metrics.jsonl").read_text())
    verdict = verdict_of([candidate], runs)
    assert verdict.outcome not in (Outcome.PASS, Outcome.INCONCLUSIVE), "equal rubbish on both sides is no agreement"
    with pytest.raises(ReportError, match=said or "not recorded"):
        record(read_runs(runs), rule(), DECLARED, tmp_path / "baselines", "by the test")


def test_the_curve_of_the_other_hardware_that_is_a_copy_of_the_baseline_is_flagged(tmp_path: Path, baseline: list[Path]):
    values = [json.loads(line)["metrics"]["rollout/reward_mean"] for line in (baseline[3] / "metrics.jsonl").read_text().splitlines()]
    copied = run_dir(tmp_path / "seed-100", 100, values, devices=["Ascend910"], host={"hostname": "npu-1"})
    verdict = verdict_of([copied], baseline)
    assert verdict.outcome is Outcome.INVALID
    assert "seed-3" in words(verdict)


def test_a_reward_on_another_scale_is_invalid_and_not_twice_as_good(tmp_path: Path, baseline: list[Path]):
    doubled = run_dir(tmp_path / "seed-100", 100, [2 * value for value in rewards(100)])
    assert verdict_of([doubled], baseline).outcome is Outcome.INVALID
    renamed = run_dir(tmp_path / "seed-101", 101, labels={"cell": CELL, "science_hash": SCIENCE, "reward": {"id": "exact-match/2", "range": [0.0, 1.0]}})
    verdict = verdict_of([renamed], baseline)
    assert verdict.outcome is Outcome.INVALID
    assert "exact-match/2" in words(verdict)


def test_a_resumed_run_s_later_record_wins_and_the_restart_is_shown(tmp_path: Path, baseline: list[Path]):
    run = run_dir(tmp_path / "seed-100", 100)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    crashed = [json.dumps({"step": step, "metrics": {"rollout/reward_mean": 0.0}}) for step in range(60, 70)]
    (run / "metrics.jsonl").write_text("\n".join([*lines[:60], *crashed, *lines[60:]]) + "\n")
    read = read_run(run)
    assert len(read.steps) == 100
    assert read.curves["rollout/reward_mean"].values[65] > 0.5
    verdict = verdict_of([run], baseline)
    assert verdict.outcome is Outcome.PASS, verdict.reasons
    assert any("restarted at step 60" in note.text for note in verdict.candidates[0].notes)


def test_a_torn_or_strangely_encoded_file_gives_the_same_numbers_or_is_refused(tmp_path: Path):
    text = (jsonl(tmp_path / "plain.jsonl", rewards(1))).read_text()
    plain = read_run(tmp_path / "plain.jsonl").curves["rollout/reward_mean"].values
    for name, data in {
        "utf-16": text.encode("utf-16"),
        "bom": text.encode("utf-8-sig"),
        "crlf": text.replace("\n", "\r\n").encode(),
        "torn": text.encode() + b'{"step": 100, "met',
    }.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_bytes(data)
        run = read_or_note(file)
        if run.curves:
            assert run.curves["rollout/reward_mean"].values.tolist() == plain.tolist(), name


def test_the_direction_comes_from_the_recipe_and_not_from_a_name_that_lies(tmp_path: Path):
    """A key called accuracy that holds a loss: with `better: lower` a falling curve is learning, and the same curve is none with `better: higher`."""
    falling = [[1.0 - value for value in rewards(seed)] for seed in range(6)]
    runs = [jsonl(tmp_path / f"{index}.jsonl", values, "eval_accuracy") for index, values in enumerate(falling)]
    for better, good in (("lower", True), ("higher", False)):
        changed = rule(metric="eval_accuracy", better=better, delta=Margins(first=0.10, last=0.03, whole=0.025))
        verdict = judge(runs[5:], runs[:5], changed, Declared(assume_comparable=True))
        assert (verdict.outcome is Outcome.PASS) == good, verdict.reasons
