"""The cases of docs/public-curves.md on made-up curves: these run always, the real ones where their folder is given."""

import itertools
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from matrix.outcome import Outcome
from matrix.rule import Exactness, Trajectory
from reports.cli import app
from reports.judge import judge
from reports.readers import read_runs
from reports.verdict import Declared
from tests.reports.synthetic import jsonl, rewards, rule

VOUCHED = Declared(assume_comparable=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("curves")
    rng = np.random.default_rng(0)
    reproduced = [value + float(shift) for value, shift in zip(rewards(0), rng.normal(0, 0.002, 100), strict=True)]
    made = {
        "flip": [max(0.0, value) for value in (0.36 - 0.01 * step for step in range(100))],
        "nosync": (0.36 + rng.normal(0, 0.02, 100)).tolist(),
        "slow": rewards(100, speed=0.1),
        "short": rewards(100)[:60],
        "collapse": (np.concatenate([0.35 + 0.04 * np.arange(10), np.full(20, 0.7), np.full(70, 0.0)]) + np.abs(rng.normal(0, 0.01, 100))).tolist(),
        "zeros": [0.0] * 100,
        "reproduced": reproduced,
        "drifting": [value + 0.004 for value in rewards(0)],
        "sinking": [value - 0.004 for value in rewards(0)],
        "spiked": [value + (0.3 if step == 40 else 0.0) for step, value in enumerate(rewards(0))],
    }
    paths = {name: jsonl(root / f"{name}.jsonl", values) for name, values in made.items()}
    paths |= {f"healthy{seed}": jsonl(root / f"healthy{seed}.jsonl", rewards(seed)) for seed in range(8)}
    sparse = root / "sparse.jsonl"
    lines = [json.dumps({"step": step, "metrics": {"rollout/reward_mean": reproduced[step]}}) for step in range(0, 100, 5)]
    sparse.write_text("\n".join(lines) + "\n")
    empty = root / "empty.jsonl"
    empty.write_bytes(b"")
    return paths | {"sparse": sparse, "empty": empty}


def healthy(files):
    return [files[f"healthy{seed}"] for seed in range(8)]


def verdict(files, name, baseline, **changes):
    return judge([files[name]], baseline, rule(**changes), VOUCHED)


def test_any_five_healthy_seeds_pass_the_other_three(files):
    runs = read_runs(healthy(files))
    for five in itertools.combinations(range(8), 5):
        base, others = [runs[i] for i in five], [runs[i] for i in range(8) if i not in five]
        outcomes = [judge(candidates, base, rule(spread="larger"), VOUCHED).outcome for candidates in ([others[0]], [others[1]], [others[2]], others)]
        assert set(outcomes) <= {Outcome.PASS, Outcome.INCONCLUSIVE} and outcomes[-1] is Outcome.PASS, five


@pytest.mark.parametrize(
    ("name", "words"),
    [("flip", "sign of the advantage"), ("nosync", "learning is more than"), ("slow", "wholly outside"), ("collapse", "late collapse")],
)
def test_faults_fail_at_once(files, name, words):
    found = verdict(files, name, healthy(files)[:5])
    assert found.outcome is Outcome.FAIL
    assert words in "\n".join([*found.reasons, *(suspect.name for suspect in found.suspects)])


def test_a_collapse_needs_no_distribution_to_fail(files):
    found = verdict(files, "collapse", healthy(files)[:1])
    assert (found.outcome, found.suspects[0].name) == (Outcome.FAIL, "late collapse")
    assert "it had risen from" in found.suspects[0].evidence


def test_a_run_that_ended_early_is_incomplete(files):
    found = verdict(files, "short", healthy(files)[:5])
    assert found.outcome is Outcome.INCOMPLETE
    assert "60/100" in found.headline


def test_another_science_hash_is_invalid_though_the_curve_would_pass(files):
    arguments = ["judge", files["healthy7"], *itertools.chain(*(("-b", path) for path in healthy(files)[:5])), "--delta-first", 0.1, "--delta", 0.03]
    said = ["--candidate-label", "science_hash=mixture", "--baseline-label", "science_hash=dense"]
    assert CliRunner().invoke(app, [str(item) for item in [*arguments, *said[2:], "--candidate-label", "science_hash=dense"]]).exit_code == 0
    done = CliRunner().invoke(app, [str(item) for item in [*arguments, *said]])
    assert done.exit_code == Outcome.INVALID.exit_code
    assert "science hashes differ: candidates mixture; baseline dense" in done.output


@pytest.mark.parametrize("golden", ["zeros", "empty"])
def test_goldens_that_prove_nothing_are_invalid(files, golden):
    for baseline in ([files[golden]], [*healthy(files)[:4], files[golden]]):
        assert verdict(files, "healthy7", baseline).outcome is Outcome.INVALID


def test_a_golden_of_zeros_is_invalid_as_a_candidate_too_and_a_run_that_never_scored_fails(files, tmp_path):
    """A reference file of zeros measured nothing; a run's own log of zeros says that it did not learn."""
    zeros = {"reward": {"start_step": 0, "end_step": 99, "step_interval": 1, "values": {str(step): 0.0 for step in range(100)}}}
    (tmp_path / "golden.json").write_text(json.dumps(zeros))
    golden = judge([tmp_path / "golden.json"], healthy(files)[:5], rule(), VOUCHED)
    assert (golden.outcome, "is 0 at all 100 steps: no measurement" in golden.headline) == (Outcome.INVALID, True)
    (tmp_path / "nemo.json").write_text(json.dumps({"train/reward": zeros["reward"]["values"]}))
    assert judge([tmp_path / "nemo.json"], healthy(files)[:5], rule(), VOUCHED).outcome is Outcome.INVALID
    assert verdict(files, "empty", healthy(files)[:5]).outcome is Outcome.INVALID
    assert verdict(files, "zeros", healthy(files)[:5]).outcome is Outcome.FAIL


EXACT = {"evidence": "exactness", "exactness": Exactness(weight_digests=False, trajectory=Trajectory(pointwise=0.02, mean=0.002))}


@pytest.mark.parametrize(
    ("name", "wanted", "words"),
    [
        ("reproduced", Outcome.PASS, "on 100 common steps"),
        ("drifting", Outcome.FAIL, "mean distance"),
        ("sinking", Outcome.FAIL, "mean distance"),
        ("spiked", Outcome.FAIL, "(step 40)"),
        ("healthy1", Outcome.FAIL, "largest distance"),
        ("sparse", Outcome.PASS, "on 20 common steps of 20 and 100"),
        ("zeros", Outcome.INVALID, "no measurement"),
    ],
)
def test_exact_trajectories(files, name, wanted, words):
    found = verdict(files, name, [files["healthy0"]], **EXACT)
    assert found.outcome is wanted, found.reasons
    assert words in found.headline


def test_an_exact_trajectory_may_be_equal_and_needs_to_know_whom_it_reproduces(files, tmp_path):
    again = jsonl(tmp_path / "again.jsonl", rewards(0))
    assert judge([again], [files["healthy0"]], rule(**EXACT), VOUCHED).outcome is Outcome.PASS
    several = judge([again], healthy(files)[:3], rule(**EXACT), VOUCHED)
    assert several.outcome is Outcome.INVALID and "give its seed" in several.headline
    assert judge([again], None, rule(**EXACT), VOUCHED).outcome is Outcome.NO_BASELINE


def test_step_grids_are_intersected_and_too_few_common_steps_decide_nothing(files, tmp_path):
    found = verdict(files, "healthy7", [files["sparse"]])
    assert found.common_steps == 20 and "compared on the 20 steps" in "\n".join(found.reasons)
    odd = tmp_path / "odd.jsonl"
    lines = [json.dumps({"step": step, "metrics": {"rollout/reward_mean": value}}) for step, value in enumerate(rewards(9)) if step % 7 == 0]
    odd.write_text("\n".join(lines) + "\n")
    few = judge([odd], [files["sparse"]], rule(), VOUCHED)
    assert few.outcome is Outcome.INCONCLUSIVE and "too few to compare" in few.headline


def test_few_common_steps_decide_nothing_though_both_windows_hold_some(tmp_path):
    def every(name, seed, stride):
        lines = [json.dumps({"step": step, "metrics": {"rollout/reward_mean": rewards(seed)[step]}}) for step in range(0, 100, stride)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    base = [every(f"{seed}.jsonl", seed, 3) for seed in range(4)]
    found = judge([every("c.jsonl", 100, 5)], base, rule(), VOUCHED)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert found.headline == "the runs share 7 steps of rollout/reward_mean (20 in the sparsest): too few to compare"
