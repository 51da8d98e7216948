"""What a person may give to `judge` by mistake: one line and an exit code, never a traceback and never a pass."""

import gzip
import json
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from matrix.outcome import Outcome
from reports.cache import _say_once
from reports.cli import main
from reports.readers import read_run
from reports.readers.base import Reading
from reports.replay import replay
from reports.verdict import read_verdict
from tests.reports.synthetic import jsonl, rewards, run_dir

RULE = ["--planned-steps", "100", "--delta-first", "0.1", "--delta-last", "0.03", "--delta-whole", "0.025", "--assume-comparable"]
REWARD = "rollout/reward_mean"


@pytest.fixture
def judged(tmp_path, monkeypatch, capsys):
    """judged(path, option…) -> (exit code, output, error), against five healthy runs."""
    against = [part for seed in range(5) for part in ("-b", str(jsonl(tmp_path / f"b{seed}.jsonl", rewards(seed))))]

    def call(*arguments, rule=RULE):
        monkeypatch.setattr(sys, "argv", ["reports", "judge", *map(str, arguments), *against, *rule])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return left.value.code, told.out, told.err

    return call


def written(path, values, step=lambda at: at):
    """JSON lines; a value that is text stands there as it is."""
    path.write_text("".join(f'{{"step": {step(at)}, "metrics": {{"{REWARD}": {value}}}}}\n' for at, value in enumerate(values)))
    return path


@pytest.mark.parametrize("at", [0, 1, 50, 75, 98, 99])
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", '"nan"', '"-inf"', "1e400"])
def test_not_finite_at_any_place_fails_and_names_the_step(judged, tmp_path, at, word):
    values = [repr(value) for value in rewards(100)]
    values[at] = word
    code, out, _ = judged(written(tmp_path / "c.jsonl", values))
    assert (code, f"at step {at}" in out) == (Outcome.FAIL.exit_code, True)


@pytest.mark.parametrize("value", ["1e308", "-1e308", "1.7e308"])
def test_values_that_overflow_are_never_a_pass(judged, tmp_path, value):
    values = [repr(value) for value in rewards(100)]
    values[50] = value
    code, out, _ = judged(written(tmp_path / "c.jsonl", values))
    assert (code, "values so large that their noise cannot be computed" in out) == (Outcome.INCONCLUSIVE.exit_code, True)
    assert judged(written(tmp_path / "all.jsonl", [value] * 99 + ["9e307"]))[0] != 0


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (b"", Outcome.INVALID),
        (b"\0" * 100_000, Outcome.INVALID),
        (bytes(range(256)) * 400, Outcome.INVALID),
        (gzip.compress(b""), Outcome.INVALID),
        (gzip.compress(b"x" * 9999)[:-9], Outcome.INVALID),
        (b"[" * 100_000, Outcome.INVALID),
        (b"step,reward\n" + b"".join(b"%d,%s\n" % (step, b"1" * 6000) for step in range(100)), Outcome.INVALID),
        (b"step,reward\n" + b"".join(b"%s%d,0.5\n" % (b"1" * 6000, step) for step in range(100)), Outcome.INVALID),
        (b"step,reward\n0,0.5\n", Outcome.INCOMPLETE),
        (b"".join(b'{"step": %d, "reward": 0.%d}\n' % (step - 5, step + 10) for step in range(100)), Outcome.INCOMPLETE),
        (b"".join(b'{"step": %d, "reward": 0.%d}\n' % (step * 10**17, step + 10) for step in range(40)), Outcome.INVALID),
        (b"".join(b'{"step": %d, "reward": 0.%d}\n' % (step + 2**70, step + 10) for step in range(100)), Outcome.INVALID),
    ],
    ids=[
        "empty",
        "zero bytes",
        "junk",
        "empty gz",
        "torn gz",
        "deep",
        "digits",
        "long steps",
        "one step",
        "negative steps",
        "huge steps",
        "steps beyond 64 bits",
    ],
)
def test_files_that_are_no_whole_run(judged, tmp_path, content, outcome):
    path = tmp_path / "c"
    path.write_bytes(content)
    assert judged(path)[0] == outcome.exit_code


def test_binary_junk_inside_a_log_costs_what_it_hit_and_no_more(judged, tmp_path):
    whole = jsonl(tmp_path / "c.jsonl", rewards(100)).read_bytes()
    cut = whole.index(b"\n", 3000) + 1
    (tmp_path / "c.jsonl").write_bytes(whole[:cut] + bytes(range(256)) * 12 + b"\n" + whole[cut:])
    assert judged(tmp_path / "c.jsonl")[0] == 0
    (tmp_path / "c.jsonl").write_bytes(whole[: cut - 9] + bytes(range(256)) * 12 + whole[cut - 9 :])
    assert judged(tmp_path / "c.jsonl")[0] in (Outcome.INCOMPLETE.exit_code, Outcome.INVALID.exit_code)


@pytest.mark.parametrize("name", ["日本 ñ \u202e x 😀.jsonl", "new\nline.jsonl", "a#b.jsonl", "[red]x.jsonl", os.fsdecode(b"half\xff.jsonl")])
def test_names_of_any_kind_are_judged_printed_stored_and_replayed(judged, tmp_path, name):
    path = jsonl(tmp_path / name, rewards(100))
    code, _, _ = judged(path, "--out", tmp_path / "v.json", "--cache", tmp_path / "cache")
    assert code == 0
    assert replay(read_verdict(tmp_path / "v.json")).outcome is Outcome.PASS
    assert json.loads(judged(path, "--json", "--cache", tmp_path / "cache")[1])["outcome"] == "PASS"


def test_half_a_character_in_json_is_written_out(judged, tmp_path):
    run = run_dir(tmp_path / "seed-100", 100)
    lines = (run / "metrics.jsonl").read_text().replace('"rollout/truncated_frac"', '"x\\ud800y"')
    (run / "metrics.jsonl").write_text(lines)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"commit": "\ud800"}))
    assert "x\\ud800y" in read_run(run).curves
    assert judged(run, "--json", rule=[*RULE, "--baseline-label", f"science_hash={manifest['labels']['science_hash']}", "--recipe", _recipe(tmp_path)])[0] != 2


def _recipe(folder):
    file = folder / "rule.yaml"
    file.write_text("sided: two\nplanned_steps: 100\nwindows: {first: 5, last: 25}\ndelta: {first: 0.1, last: 0.03, whole: 0.025}\ndelta_reason: a test\n")
    return str(file)


@pytest.mark.parametrize(
    "options",
    [("--planned-steps", "0"), ("--planned-steps", "-5"), ("--alpha", "nan"), ("--first", "-1"), ("--max-seeds", "9"), ("--set", "windows=3")],
)
def test_options_that_are_no_rule_are_exit_code_2(judged, tmp_path, options):
    code, _, error = judged(jsonl(tmp_path / "c.jsonl", rewards(100)), rule=[*RULE, *options])
    assert (code, error.startswith("error: the rule does not fit: ")) == (2, True)


def test_urls_keep_their_slashes(judged, tmp_path):
    assert judged(f"file://{jsonl(tmp_path / 'c.jsonl', rewards(100))}")[0] == 0


def test_pipes_are_refused_and_do_not_spoil_the_folder_they_lie_in(judged, tmp_path):
    run = run_dir(tmp_path / "seed-100", 100)
    os.mkfifo(run / "pipe")
    assert judged(run, rule=[*RULE, "--recipe", _recipe(tmp_path), "--baseline-label", "science_hash=" + read_run(run).science_hash])[0] != 2
    code, _, error = judged(run / "pipe")
    assert (code, "a pipe or a device" in error) == (2, True)


# --- caches and long reads ----------------------------------------------------------------------------------------------------------------------


def settled(path):
    os.utime(path, (time.time() - 100,) * 2)
    return path


def test_a_cache_that_cannot_be_written_is_said_once_and_costs_nothing_but_time(judged, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("reports.cache.SETTLED_NS", -10_000_000_000)
    run = settled(jsonl(tmp_path / "c.jsonl", rewards(100)))
    monkeypatch.setattr("pathlib.Path.write_bytes", _read_only)
    _say_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert judged(run, "--cache", tmp_path / "cache")[0] == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"--cache {tmp_path / 'cache'}: cannot be written (Read-only file system): what is not in it is read anew each time"
    ]
    code, _, error = judged(run, "--cache", run)
    assert (code, "not a folder" in error) == (2, True)
    code, _, error = judged(run, "--out", "/proc/x.json")
    assert (code, "--out /proc/x.json: cannot be written" in error) == (2, True)


def _read_only(*_):
    raise OSError(30, "Read-only file system")


READ = """
import sys
from pathlib import Path
from reports.readers import read_run
from reports.readers.base import Reading
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    for name in sorted(Path(sys.argv[1]).glob("*.jsonl")):
        run = read_run(name, Reading(cache=Path(sys.argv[2])))
        assert run.curves["rollout/reward_mean"].values[7] == float(name.stem), name
"""


def test_two_processes_on_one_cache_read_the_right_numbers(tmp_path):
    for number in range(12):
        settled(jsonl(tmp_path / f"{number}.jsonl", [float(number)] * 50))
    time.sleep(2.1)  # a change of an inode's own time is not undone by utime
    many = [subprocess.Popen([sys.executable, "-c", READ, str(tmp_path), str(tmp_path / "cache"), "8"]) for _ in range(2)]
    assert [one.wait(60) for one in many] == [0, 0]
    assert not list((tmp_path / "cache").rglob(".*"))
    assert read_run(tmp_path / "3.jsonl", Reading(cache=tmp_path / "cache")).curves[REWARD].values[0] == 3.0


def test_an_interrupted_read_leaves_no_entry(tmp_path):
    filler = "INFO throughput: 812.4 tokens/s, running: 12 reqs, step time\n" * 60
    with (tmp_path / "5.0.jsonl").open("w") as out:
        for step in range(9000):
            out.write(f'{{"step": {step}, "rollout/reward_mean": 5.0}}\n{filler if step > 20 else ""}')
    reader = subprocess.Popen([sys.executable, "-c", READ, str(tmp_path), str(tmp_path / "cache"), "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    reader.stdout.readline()
    time.sleep(0.3)
    reader.send_signal(signal.SIGINT)
    _, error = reader.communicate(timeout=30)
    assert (reader.returncode, b"KeyboardInterrupt" in error) == (-signal.SIGINT, True)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").rglob("*.curves"))
