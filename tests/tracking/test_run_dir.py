import json
import math
import subprocess
import sys
import textwrap

import pytest

from vime.config.resolve import from_dict, resolve
from vime.errors import UserError
from vime.tracking.run_dir import RunDir


@pytest.fixture
def resolved():
    return from_dict({"model": {"path": "/m"}, "data": {"task": "spell_backward"}})


@pytest.fixture
def run(tmp_path, resolved):
    return RunDir.create(tmp_path / "run", resolved, {"seed": 0, "planned_steps": 3})


def lines(run, name):
    return [json.loads(line) for line in (run.path / name).read_text().splitlines()]


def test_a_step_is_one_whole_line_and_nan_and_missing_stay_what_they_are(run):
    run.step(0, {"b": 2, "a": math.nan, "c": None})
    (record,) = lines(run, "metrics.jsonl")
    assert record["step"] == 0 and list(record["metrics"]) == ["a", "b", "c"]
    assert math.isnan(record["metrics"]["a"]) and record["metrics"]["c"] is None and record["metrics"]["b"] == 2


def test_config_yaml_resolves_to_the_same_hash(run, resolved):
    assert resolve(run.path / "config.yaml").hash == resolved.hash == run.manifest()["config_hash"]


def test_a_run_is_never_written_over(run, resolved):
    with pytest.raises(UserError, match="already holds a run: continue it with --resume"):
        RunDir.create(run.path, resolved, {})


def test_opening_what_is_no_run_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        RunDir.open(tmp_path)


def test_attempts_tell_how_each_ended(run):
    run.begin_attempt("start")
    run.begin_attempt("resume from step-000010")
    run.end_attempt("completed")
    first, second = run.manifest()["attempts"]
    assert first["end"] is None and second["end"] >= second["start"] and second["reason"] == "resume from step-000010; completed"
    assert [event["event"] for event in lines(run, "events.jsonl")] == ["start", "resume", "end"]


def test_a_torn_line_is_ended_on_reopening(run):
    run.step(0, {"a": 1.0})
    with (run.path / "metrics.jsonl").open("a") as out:
        out.write('{"step": 1, "met')
    run.close()
    again = RunDir.open(run.path)
    again.step(1, {"a": 2.0})
    text = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(text[0])["step"], json.loads(text[2])["step"]] == [0, 1]


def test_only_one_process_writes_a_run(run):
    with pytest.raises(UserError, match="another vime process is writing it"):
        RunDir.open(run.path)
    run.close()
    RunDir.open(run.path).close()


def test_a_full_disk_names_the_file_and_the_mend(tmp_path, resolved):
    code = textwrap.dedent(
        f"""
        import resource, signal
        from pathlib import Path
        from vime.config.resolve import from_dict
        from vime.errors import RunError
        from vime.tracking.run_dir import RunDir
        run = RunDir.create(Path({str(tmp_path / "full")!r}), from_dict({{"model": {{"path": "/m"}}, "data": {{"task": "x"}}}}), {{}})
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        run.step(0, {{"a": 1.0}})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            run.step(1, {{"a": 1.0}})
        except RunError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "metrics.jsonl" in done.stdout and "--resume" in done.stdout


def test_samples_keep_every_character(run):
    run.samples(3, [{"response": "żółć\n\x00", "reward": None}])
    (record,) = lines(run, "samples/step-000003.jsonl")
    assert record == {"response": "żółć\n\x00", "reward": None}
