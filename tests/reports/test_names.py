"""Names of metrics: the declared table, a user's extension of it, and what happens when a name is ambiguous."""

import json
import tracemalloc

import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.errors import ReportError
from reports.model import NoteKind
from reports.readers import read_run
from reports.readers.base import Reading
from reports.readers.names import names, resolve_metric

REWARD = "rollout/reward_mean"


def table(tmp_path, header, rows):
    path = tmp_path / "a.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_no_source_name_stands_under_two_of_ours_and_all_of_ours_are_known():
    from reports.metrics import KEPT_IN_BASELINES

    assert set(names().ours.values()) <= {*KEPT_IN_BASELINES, "perf/rollout_s", "perf/train_s"}


def test_an_ambiguous_name_is_not_taken_and_asking_for_it_is_an_error_with_the_choices(tmp_path):
    path = table(tmp_path, "step,reward,reward_mean,loss", ["1,0.5,0.25,1.5", "2,0.75,0.5,1.25"])
    run = read_run(path)
    assert REWARD not in run.curves
    assert run.curves["train/loss"].values.tolist() == [1.5, 1.25]
    assert run.notes_of(NoteKind.AMBIGUOUS)[0].metric == REWARD
    with pytest.raises(ReportError, match=r"could be 'reward' or 'reward_mean'.*--name 'rollout/reward_mean=reward'"):
        resolve_metric(REWARD, [run])
    assert resolve_metric("loss", [run]) == "train/loss"
    chosen = read_run(path, Reading(names={REWARD: "reward_mean"}))
    assert chosen.curves[REWARD].values.tolist() == [0.25, 0.5]
    assert resolve_metric(REWARD, [chosen]) == REWARD


def test_two_names_for_the_same_numbers_are_not_ambiguous(tmp_path):
    run = read_run(table(tmp_path, "step,reward,reward_mean", ["1,0.5,0.5", "2,0.75,0.75"]))
    assert run.curves[REWARD].values.tolist() == [0.5, 0.75]


def test_our_own_name_wins_over_another_name_for_it(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"step": 0, "metrics": {REWARD: 0.5, "reward": 0.25}}) + "\n")
    run = read_run(path)
    assert (run.curves[REWARD].values.tolist(), run.curves["reward"].values.tolist()) == ([0.5], [0.25])


def test_ambiguous_metric_on_the_command_line(tmp_path):
    path = table(tmp_path, "step,reward,reward_mean", [f"{i},{0.5 + i / 100},{0.25 + i / 50}" for i in range(30)])
    said = ["judge", str(path), "-b", str(path), "--planned-steps", "30", "--delta", "0.1", "--assume-comparable"]
    done = CliRunner().invoke(app, said)
    assert "could be 'reward' or 'reward_mean'" in str(done.exception or done.output)
    assert "could be" not in str(CliRunner().invoke(app, [*said, "--name", f"{REWARD}=reward"]).exception)


def test_a_metric_that_is_not_there_names_those_that_are(tmp_path):
    with pytest.raises(ReportError, match="holds no metric 'score'; it has reward"):
        read_run(table(tmp_path, "step,reward,x", ["1,0.5,2"]), Reading(names={"other": "score"}))


def test_a_users_table_extends_ours(tmp_path):
    extra = tmp_path / "names.toml"
    extra.write_text('[names]\n"rollout/reward_mean" = ["Punkte"]\n[steps]\nnames = ["Schritt"]\n[bookkeeping]\nnames = ["Uhrzeit"]\n')
    run = read_run(table(tmp_path, "Schritt,Punkte,loss,Uhrzeit", ["1,0.5,2,3", "2,0.75,1,4"]), Reading(format="csv", table=extra))
    assert set(run.curves) == {REWARD, "train/loss"}
    assert run.curves[REWARD].steps.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[names]\na = 'b'\n", "not lists of names"),
        ("[more]\n", "not lists of names"),
        ("[names\n", "names.toml"),
        ('[names]\n"a" = ["x"]\n"b" = ["X"]\n', "give it to one of them"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path, text, words):
    extra = tmp_path / "names.toml"
    extra.write_text(text)
    with pytest.raises(ReportError, match=words):
        names(extra)
    with pytest.raises(ReportError, match="--names"):
        names(tmp_path / "missing.toml")


def test_memory_does_not_grow_with_what_stands_between_the_records(tmp_path):
    """Fifty times the log, the same curves: the reader's memory stays where it was."""
    peaks = []
    for filler in (20, 1000):
        path = tmp_path / f"{filler}.log"
        with path.open("w") as out:
            for step in range(100):
                out.write(f"step:{step} - reward:0.5 - loss:1.5\n" + "INFO Avg prompt throughput: 812.4 tokens/s, Running: 12 reqs\n" * filler)
        read_run(path)
        tracemalloc.start()
        assert len(read_run(path).steps) == 100
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_the_readers_import_quickly_and_nothing_heavy():
    import subprocess
    import sys

    code = "import time; t = time.perf_counter(); from reports.readers import readers; readers(); print(time.perf_counter() - t); import sys; "
    code += "print(sorted(m for m in ('torch', 'ray', 'vllm', 'megatron', 'tensorboard', 'pandas', 'fsspec', 'zstandard') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert float(done[0]) < 2
    assert done[1] == "[]"
