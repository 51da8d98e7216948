"""The cache of parsed curves never gives other numbers than the files: not when they change, not when it is torn, not when several write it."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import reports.cache
from reports.errors import UnreadableRun
from reports.judge import judge
from reports.readers import read_or_note, read_run, read_runs
from reports.readers.base import Reading
from tests.reports.shapes import SHAPES, event_file, run_values
from tests.reports.synthetic import jsonl, rewards, rule, run_dir

REWARD = "rollout/reward_mean"


@pytest.fixture(autouse=True)
def files_settle_at_once(monkeypatch):
    """Two seconds of rest are asked for because the clocks of some file systems are that coarse; here a tick is some milliseconds."""
    monkeypatch.setattr(reports.cache, "SETTLED_NS", 20_000_000)


@pytest.fixture
def how(tmp_path):
    return Reading(cache=tmp_path / "cache")


def settle():
    time.sleep(0.05)


def parsed(monkeypatch):
    """Counts how often a file is really read."""
    from reports import readers

    calls = []
    original = readers.parse
    monkeypatch.setattr(readers, "parse", lambda source, reading: calls.append(source.url) or original(source, reading))
    return calls


def same(one, two):
    assert (one.format, one.notes, one.manifest, one.runner, list(one.events), one.sha, one.data_sha) == (
        two.format, two.notes, two.manifest, two.runner, list(two.events), two.sha, two.data_sha,
    )  # fmt: skip
    assert (one.path, one.url, one.part, one.aliases, one.ambiguous, repr(one.facts), one.syncs) == (
        two.path, two.url, two.part, two.aliases, two.ambiguous, repr(two.facts), two.syncs,
    )  # fmt: skip
    assert one.curves.keys() == two.curves.keys()
    np.testing.assert_array_equal(one.steps, two.steps)
    for name in one.curves:
        np.testing.assert_array_equal(one.curves[name].steps, two.curves[name].steps)
        np.testing.assert_array_equal(one.curves[name].values, two.curves[name].values)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_comes_back_is_what_was_read(tmp_path, how, monkeypatch, shape):
    values = run_values(1)
    values[REWARD][3] = float("nan")
    file = tmp_path / "curves"
    file.write_text(shape.write(values))
    settle()
    calls = parsed(monkeypatch)
    first, second = read_run(file, how), read_run(file, how)
    assert len(calls) == 1
    same(first, second)
    same(second, read_run(file))


def test_run_directory_and_verdict_from_the_cache(tmp_path, how, monkeypatch):
    paths = [run_dir(tmp_path / f"seed-{seed}", seed) for seed in (0, 1, 2, 3, 100)]
    settle()
    fresh = judge(paths[4:], paths[:4], rule())
    read_runs(paths, how)
    calls = parsed(monkeypatch)
    cached = judge(paths[4:], paths[:4], rule(), format=how)
    assert calls == []
    assert cached.model_copy(update={"created": fresh.created}) == fresh
    same(read_run(paths[0], how), read_run(paths[0]))
    assert read_run(paths[0], how).events_of("weight_sync") == read_run(paths[0]).events_of("weight_sync")


@pytest.mark.parametrize("change", ["append", "same size", "same size and times", "replaced", "shorter", "manifest", "events", "runner appears"])
def test_changed_files_are_read_again(tmp_path, how, change):
    folder = run_dir(tmp_path / "seed-3", 3)
    settle()
    before = read_run(folder, how)
    metrics = folder / "metrics.jsonl"
    stat = metrics.stat()
    text = metrics.read_text()
    if change == "append":
        with metrics.open("a") as file:
            file.write(json.dumps({"step": 100, "metrics": {REWARD: 0.5}}) + "\n")
    elif change in ("same size", "same size and times"):
        metrics.write_text(text.replace('truncated_frac": 0.0', 'truncated_frac": 1.0', 1))
        if change == "same size and times":
            os.utime(metrics, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert metrics.stat().st_size == stat.st_size
    elif change == "replaced":
        other = tmp_path / "other"
        other.write_text(text.replace('truncated_frac": 0.0', 'truncated_frac": 1.0', 1))
        other.replace(metrics)
    elif change == "shorter":
        metrics.write_text("".join(text.splitlines(keepends=True)[:50]))
    elif change == "manifest":
        (folder / "manifest.json").write_text((folder / "manifest.json").read_text().replace('"seed": 3', '"seed": 4'))
    elif change == "events":
        (folder / "events.jsonl").write_text("")
    else:
        (folder / "runner.json").write_text('{"infra_class": "lost"}')
    after = read_run(folder, how)
    same(after, read_run(folder))
    assert (after.sha, after.seed, list(after.events), after.runner) != (before.sha, before.seed, list(before.events), before.runner)
    settle()
    same(read_run(folder, how), read_run(folder))


def test_touched_files_are_not_parsed_again_and_new_event_files_are_seen(tmp_path, how, monkeypatch):
    values = {name: [float(np.float32(v)) for v in curve] for name, curve in run_values(1).items()}
    event_file(tmp_path / "tb" / "a.tfevents.1", values)
    settle()
    read_run(tmp_path / "tb", how)
    calls = parsed(monkeypatch)
    os.utime(tmp_path / "tb" / "a.tfevents.1")
    settle()
    read_run(tmp_path / "tb", how)
    assert calls == []
    event_file(tmp_path / "tb" / "b.tfevents.2", values, start=13)
    settle()
    assert read_run(tmp_path / "tb", how).steps.tolist() == list(range(1, 25))


def test_a_torn_or_damaged_entry_is_as_good_as_none(tmp_path, how):
    file = jsonl(tmp_path / "a.jsonl", rewards(1))
    settle()
    wanted = read_run(file, how)
    (entry,) = how.cache.rglob("*.curves")
    data = entry.read_bytes()
    damages = [data[:n] for n in range(0, len(data), 61)] + [data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(0, len(data), 37)]
    for damaged in [*damages, b"", data + b"x", data[:8] + b"\xff" * 8 + data[16:]]:
        entry.write_bytes(damaged)
        same(read_run(file, how), wanted)
        assert entry.read_bytes() == data  # mended


def test_entries_depend_on_what_the_caller_said_and_on_the_code(tmp_path, how, monkeypatch):
    file = tmp_path / "a.csv"
    file.write_text("step,n,score,reward\n1,10,0.5,0.25\n2,20,0.75,0.5\n")
    settle()
    assert read_run(file, how).steps.tolist() == [1, 2]
    assert read_run(file, replace(how, step="n")).steps.tolist() == [10, 20]
    assert read_run(file, replace(how, names={REWARD: "score"})).curves[REWARD].values.tolist() == [0.5, 0.75]
    table = tmp_path / "names.toml"
    table.write_text('[names]\n"rollout/reward_mean" = ["score"]\n"other" = ["reward"]\n')
    assert read_run(file, replace(how, table=table)).curves[REWARD].values.tolist() == [0.5, 0.75]
    calls = parsed(monkeypatch)
    read_run(file, how)
    assert calls == []
    monkeypatch.setattr(reports.cache, "code_version", lambda: "another version")
    read_run(file, how)
    assert len(calls) == 1


def test_a_file_that_just_changed_is_not_kept(tmp_path, how, monkeypatch):
    monkeypatch.setattr(reports.cache, "SETTLED_NS", 2_000_000_000)
    read_run(jsonl(tmp_path / "a.jsonl", rewards(1)), how)
    assert not list(tmp_path.rglob("*.curves"))


def test_a_file_that_grows_while_it_is_read_is_not_kept(tmp_path, how, monkeypatch):
    from reports import readers

    file = jsonl(tmp_path / "a.jsonl", rewards(1))
    settle()
    original = readers.parse

    def grows(source, reading):
        runs = original(source, reading)
        with file.open("a") as out:
            out.write(json.dumps({"step": 100, "metrics": {REWARD: 0.5}}) + "\n")
        return runs

    monkeypatch.setattr(readers, "parse", grows)
    read_run(file, how)
    monkeypatch.setattr(readers, "parse", original)
    assert read_run(file, how).steps[-1] == 100


def test_unreadable_files_are_not_kept(tmp_path, how):
    file = tmp_path / "a.jsonl"
    file.write_text("")
    settle()
    with pytest.raises(UnreadableRun):
        read_run(file, how)
    jsonl(file, rewards(1))
    assert len(read_or_note(file, how).steps) == 100


def test_many_readers_and_writers_at_once(tmp_path, how):
    files = [jsonl(tmp_path / f"{seed}.jsonl", rewards(seed)) for seed in range(4)]
    settle()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: (number % 4, read_run(files[number % 4], how).curves[REWARD].values.tolist()), range(80)))
    assert all(values == rewards(seed) for seed, values in found)
    assert not list(how.cache.rglob(".*"))


def test_several_runs_in_a_file_come_back_by_name(tmp_path, how):
    file = tmp_path / "a.csv"
    file.write_text("seed,step,reward\n1,0,0.5\n2,0,0.75\n")
    settle()
    for _ in range(2):
        assert [run.seed for run in read_runs([file], how)] == [1, 2]
        assert read_run(f"{file}#seed=2", how).curves[REWARD].values.tolist() == [0.75]
