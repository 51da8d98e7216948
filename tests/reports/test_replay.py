"""A verdict's file holds all that judging again needs."""

import json

import pytest

from matrix.outcome import Outcome
from matrix.rule import Exactness, Secondary
from reports.errors import ReportError
from reports.judge import judge, ranges
from reports.replay import differences, replay
from reports.verdict import Declared, Ending, read_verdict
from tests.reports.synthetic import CELL, SCIENCE, jsonl, rewards, rule, run_dir, sync_event
from tests.reports.test_checks import edit_metrics

DECLARED = Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE, reward_id="exact-match/1", reward_range=(0.0, 1.0))
BANDS = Exactness(step0_logprob_gap_max=1e-3, logprob_gap_mean_max=1e-4, nll_minus_entropy_z_max=5.0)
ENTROPY = Secondary(name="entropy", metric="train/entropy", statistic="last", better="higher", delta=0.1)
ARRIVAL = Secondary(name="arrival", statistic="steps_to", threshold=0.8, better="lower", delta=15.0)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    root = tmp_path_factory.mktemp("baseline")
    return [run_dir(root / f"seed-{seed}", seed) for seed in range(5)]


def nan_at(step):
    values = rewards(100)
    values[step] = float("nan")
    return values


def make(tmp_path, kind):
    """(candidates, rule, endings) of one kind of case."""
    changes = {"exactness": BANDS, "secondary": [ENTROPY, ARRIVAL]}
    run = tmp_path / "seed-100"
    if kind == "pass":
        return [run_dir(run, 100)], changes, ()
    if kind == "two":
        return [run_dir(run, 100, rewards(100, plateau=0.906)), run_dir(tmp_path / "seed-101", 101, rewards(101, plateau=0.906))], changes, ()
    if kind == "slow":
        return [edit_metrics(run_dir(run, 100, rewards(100, speed=0.4)), lambda step, m: m.update({"train/entropy": 3.0, "perf/step_s": 1.0}))], changes, ()
    if kind == "nan":
        return [run_dir(run, 100, nan_at(40))], changes, ()
    if kind == "short":
        run_dir(run, 100, rewards(100)[:57])
        (run / "runner.json").write_text('{"infra_class": "disk-full"}')
        with (run / "events.jsonl").open("a") as out:
            out.write('{"event": "error", "stage": "rollout", "text": "no space left"}\n')
        return [run], changes, (Ending(outcome=Outcome.INFRA, reason="seed 100: disk full"),)
    if kind == "digest":
        run_dir(run, 100)
        (run / "events.jsonl").write_text(json.dumps(sync_event(3, digest="")) + "\n")
        return [run], changes | {"exactness": Exactness()}, ()
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    return [empty], changes, ()


@pytest.mark.parametrize("kind", ["pass", "two", "slow", "nan", "short", "digest", "empty"])
def test_replay_gives_the_same_file_bit_for_bit(tmp_path, baseline, kind):
    candidates, changes, endings = make(tmp_path, kind)
    verdict = judge(candidates, baseline, rule(**changes), DECLARED, looks_done=0, endings=endings)
    path = verdict.write(tmp_path / "v.json")
    again = replay(read_verdict(path))
    assert again.write(tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_what_changed_is_named(tmp_path, baseline):
    verdict = judge([run_dir(tmp_path / "seed-100", 100)], baseline, rule(), DECLARED)
    edited = json.loads(verdict.model_dump_json())
    edited["comparisons"][1]["low"] = -1.0
    found = list(differences(edited, json.loads(replay(verdict).model_dump_json())))
    assert len(found) == 1 and found[0].startswith("comparisons[1].low: -1.0 became")


def test_an_older_verdict_can_be_read_but_not_judged_again(tmp_path, baseline):
    verdict = judge([run_dir(tmp_path / "seed-100", 100)], baseline, rule(), DECLARED).model_copy(update={"schema_version": 1})
    path = verdict.write(tmp_path / "v.json")
    assert read_verdict(path).outcome is Outcome.PASS
    with pytest.raises(ReportError, match="judge its runs again"):
        replay(read_verdict(path))


@pytest.mark.parametrize("steps", [[], [3], [0, 1, 2], [1, 5, 10, 15, 20], [0, 2, 4, 5, 6, 90, 91]])
def test_ranges_hold_any_steps(steps):
    import numpy as np

    parts = [np.arange(first, last + 1, stride) for first, last, stride in ranges(np.array(steps, dtype=np.int64))]
    assert np.concatenate([*parts, []]).astype(int).tolist() == steps


def test_a_runners_ending_is_the_least_a_verdict_says(tmp_path, baseline):
    run = jsonl(tmp_path / "a.jsonl", rewards(100))
    verdict = judge([run], None, rule(), endings=[Ending(outcome=Outcome.FAIL, reason="seed 100: exit 1")])
    assert (verdict.outcome, verdict.headline) == (Outcome.FAIL, "seed 100: exit 1")
