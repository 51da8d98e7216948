"""The same numbers, or a refusal; and every finding said."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reports.errors import ReportError, UnreadableRun
from reports.model import NoteKind
from reports.readers import read_or_note, read_run, readers
from tests.reports.synthetic import jsonl, rewards, run_dir

REWARD = "rollout/reward_mean"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def kinds(run) -> set[NoteKind]:
    return {note.kind for note in run.notes}


def record(step: int, value: object, metric: str = REWARD) -> str:
    return json.dumps({"step": step, "metrics": {metric: value}}) + "\n"


def test_readers_are_chosen_by_content_not_by_name(tmp_path):
    file = jsonl(tmp_path / "curve.log", rewards(0))
    folder = run_dir(tmp_path / "any-name", 3)
    assert read_run(file).format == "jsonl"
    assert read_run(folder).format == "vime"
    assert list(readers())[:2] == ["foreign", "vime"]  # the more specific first


def test_vime_run_directory_holds_seed_labels_events(tmp_path):
    run = read_run(run_dir(tmp_path / "seed-3", 3))
    assert (run.seed, run.planned_steps, run.labels["recipe"]) == (3, 100, "spell-backward")
    assert len(run.events) == 101
    np.testing.assert_array_equal(run.curves[REWARD].values, rewards(3))
    assert run.notes == ()


def test_torn_last_line_is_left_out_and_said(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", rewards(0))
    file.write_bytes(file.read_bytes()[:-20])
    run = read_run(file)
    assert run.steps[-1] == 98
    assert kinds(run) == {NoteKind.TORN_LINE}


def test_torn_line_with_the_next_record_behind_it_keeps_the_whole_record(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(record(0, 0.5) + record(1, 0.6)[:20] + record(1, 0.7) + record(2, 0.8))
    run = read_run(file)
    assert run.curves[REWARD].values.tolist() == [0.5, 0.7, 0.8]
    assert kinds(run) == {NoteKind.BROKEN_LINE, NoteKind.GLUED_LINE}


def test_resumed_run_the_later_record_wins_and_the_restart_is_reported(tmp_path):
    file = tmp_path / "a.jsonl"
    first = [record(step, 0.1) for step in range(6)]
    again = [record(step, 0.2) for step in range(3, 8)]
    file.write_text("".join(first + again))
    run = read_run(file)
    assert run.steps.tolist() == list(range(8))
    assert run.curves[REWARD].values.tolist() == [0.1] * 3 + [0.2] * 5
    (note,) = run.notes_of(NoteKind.RESTART)
    assert "restarted at step 3" in note.text
    assert "3–5" in note.text
    assert note.where == "a.jsonl:7"


def test_steps_of_an_abandoned_attempt_do_not_survive_its_restart(tmp_path):
    """Reached 9, resumed from 3, died at 5: steps 6 to 9 belong to another trajectory and must not be spliced behind."""
    file = tmp_path / "a.jsonl"
    file.write_text("".join([record(step, 0.1) for step in range(10)] + [record(step, 0.2) for step in range(3, 6)]))
    run = read_run(file)
    assert run.steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert "3–9" in run.notes_of(NoteKind.RESTART)[0].text


def test_two_writers_of_one_step_are_joined(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(record(0, 0.5) + record(0, 0.9, "eval/a/score") + record(1, 0.6))
    run = read_run(file)
    assert run.curves["eval/a/score"].values.tolist() == [0.9]
    assert run.curves[REWARD].values.tolist() == [0.5, 0.6]
    assert run.notes == ()


def test_equal_records_twice_are_reported_once(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(record(0, 0.5) + record(1, 0.6) + record(0, 0.5) + record(2, 0.7))
    run = read_run(file)
    assert run.steps.tolist() == [0, 1, 2]
    assert kinds(run) == {NoteKind.DUPLICATE}


@pytest.mark.parametrize(
    ("written", "wanted"), [("NaN", math.nan), ('"nan"', math.nan), ('"NaN"', math.nan), ("Infinity", math.inf), ('"-inf"', -math.inf), ('"0.25"', 0.25)]
)
def test_non_finite_values_and_numbers_as_text(tmp_path, written, wanted):
    file = tmp_path / "a.jsonl"
    file.write_text(record(0, 0.5) + f'{{"step": 1, "metrics": {{"{REWARD}": {written}}}}}\n')
    run = read_run(file)
    assert run.steps.tolist() == [0, 1]
    np.testing.assert_equal(run.curves[REWARD].values[1], wanted)
    assert (NoteKind.NON_FINITE in kinds(run)) == (not math.isfinite(wanted))


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("null", NoteKind.MISSING),
        ('"high"', NoteKind.TEXT_VALUE),
        ("true", NoteKind.TEXT_VALUE),
        ('"1_000"', NoteKind.TEXT_VALUE),
        ("[0.4]", NoteKind.TEXT_VALUE),
    ],
)
def test_what_is_no_number_is_missing_never_zero(tmp_path, written, kind):
    file = tmp_path / "a.jsonl"
    file.write_text(record(0, 0.5) + f'{{"step": 1, "metrics": {{"{REWARD}": {written}}}}}\n')
    run = read_run(file)
    assert run.curves[REWARD].steps.tolist() == [0]
    assert run.steps.tolist() == [0, 1]
    assert kinds(run) == {kind}


@pytest.mark.parametrize("step", ["1.5", '"1"', "-1", "true", "null"])
def test_a_step_must_be_a_whole_number(tmp_path, step):
    file = tmp_path / "a.jsonl"
    file.write_text(record(0, 0.5) + f'{{"step": {step}, "metrics": {{"{REWARD}": 0.1}}}}\n')
    run = read_run(file)
    assert run.steps.tolist() == [0]
    assert kinds(run) == {NoteKind.BROKEN_LINE}


def test_bom_and_crlf(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", rewards(0))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    run = read_run(file)
    assert run.curves[REWARD].values.tolist() == rewards(0)
    assert run.notes == ()


def test_head_record_carries_seed_and_labels(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", rewards(0))
    file.write_text(json.dumps({"manifest": {"seed": 7}, "labels": {"science_hash": "ab"}}) + "\n" + file.read_text())
    run = read_run(file)
    assert (run.seed, run.science_hash, run.notes) == (7, "ab", ())


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"hello\n", b"{}\n", b'{"step": 0}\n', b'{"lm loss": {"values": {}}}'])
def test_files_without_a_curve_are_refused(tmp_path, content):
    file = tmp_path / "a.jsonl"
    file.write_bytes(content)
    with pytest.raises(UnreadableRun, match=r"a\.jsonl"):
        read_run(file)
    assert kinds(read_or_note(file)) == {NoteKind.UNREADABLE}


def test_compressed_file_reads_as_the_plain_one(tmp_path):
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(record(0, 0.5).encode()))
    assert read_run(file).curves[REWARD].values.tolist() == [0.5]


def test_missing_path_is_the_users_mistake(tmp_path):
    with pytest.raises(ReportError, match="no such file"):
        read_or_note(tmp_path / "nothing")


def test_unknown_format_names_the_known_ones(tmp_path):
    with pytest.raises(ReportError, match="foreign, vime"):
        read_run(jsonl(tmp_path / "a", [0.1]), format="xlsx")


def test_manifest_that_is_missing_or_broken_is_said(tmp_path):
    folder = run_dir(tmp_path / "a", 3)
    (folder / "manifest.json").write_text('{"seed": 3')
    assert kinds(read_run(folder)) == {NoteKind.BROKEN_LINE}
    (folder / "manifest.json").unlink()
    run = read_run(folder)
    assert kinds(run) == {NoteKind.MISSING}
    assert run.seed is None


def test_attempts_of_the_manifest_are_reported(tmp_path):
    attempts = [{"start": 1, "end": None, "reason": "start"}, {"start": 2, "end": 3, "reason": "resume from step 40; finished"}]
    run = read_run(run_dir(tmp_path / "a", 3, attempts=attempts))
    assert "resume from step 40" in run.notes_of(NoteKind.RESTART)[0].text


def test_hash_is_of_the_numbers_not_of_the_layout(tmp_path):
    one = jsonl(tmp_path / "a.jsonl", rewards(0))
    two = tmp_path / "b.jsonl"
    two.write_text("\n\n".join(line.strip().replace(": ", ":") for line in lines(one)))
    three = jsonl(tmp_path / "c.jsonl", [*rewards(0)[:-1], 0.5])
    assert read_run(one).sha == read_run(two).sha != read_run(three).sha


CURVE = rewards(0, 12)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_gives_the_right_numbers_or_fewer_never_others(tmp_path, data):
    """Cut, repeat, reorder, join and blot lines: each step that is read has one of the values that were written for it."""
    rows = [record(step, value) for step, value in enumerate(CURVE)]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(rows) - 1))
        rows = data.draw(st.sampled_from([_cut, _repeat, _swap, _join, _blot]))(rows, at, data)
    file = tmp_path / "a.jsonl"
    file.write_text("".join(rows))
    run = read_or_note(file)
    for step, value in zip(run.curves[REWARD].steps.tolist(), run.curves[REWARD].values.tolist()) if REWARD in run.curves else ():
        assert value == CURVE[step]


def _cut(rows, at, data):
    keep = data.draw(st.integers(0, len(rows[at])))
    return [*rows[:at], rows[at][:keep]]


def _repeat(rows, at, data):
    return [*rows, rows[at]]


def _swap(rows, at, data):
    other = data.draw(st.integers(0, len(rows) - 1))
    rows = list(rows)
    rows[at], rows[other] = rows[other], rows[at]
    return rows


def _join(rows, at, data):
    return [*rows[:at], rows[at].rstrip("\n"), *rows[at + 1 :]]


def _blot(rows, at, data):
    where = data.draw(st.integers(0, max(len(rows[at]) - 2, 0)))
    return [*rows[:at], rows[at][:where] + "#" + rows[at][where + 1 :], *rows[at + 1 :]]


def _records(first, last, time=None, offset=0.0):
    return [json.dumps({"step": s, "reward": 0.01 * s + offset} | ({} if time is None else {"time": time + s})) for s in range(first, last)]


def test_two_runs_joined_without_an_overlap_are_told_by_their_clocks(tmp_path):
    """Later steps that were written earlier: no resumed run does that."""
    path = tmp_path / "joined.jsonl"
    for unit in (1.0, 1e3, 1e6, 1e9):
        path.write_text("\n".join([*_records(0, 10, 1.8e9 * unit), *_records(10, 20, 1.7e9 * unit)]) + "\n")
        with pytest.raises(UnreadableRun, match=r"line 11: step 10 was written \d+ s before step 9: two runs in one file"):
            read_run(path)
    path.write_text("\n".join([*_records(0, 10, 1.8e9), *_records(10, 20, 1.8e9 - 20)]) + "\n")  # another host, its clock 20 s behind
    run = read_run(path)
    assert len(run.steps) == 20
    assert [note.where for note in run.notes_of(NoteKind.CONFLICT)] == ["joined.jsonl:11"]
    path.write_text("\n".join([*_records(0, 10, 1.7e9), *_records(10, 20, 1.8e9)]) + "\n")
    assert not read_run(path).notes


def test_a_clock_that_begins_anew_is_said(tmp_path):
    """Seconds since the process began: a resumed run's begin at 0 again, and so would another run's."""
    path = tmp_path / "resumed.jsonl"
    path.write_text("\n".join([*_records(0, 10, 500.0), *_records(10, 20, -9.0)]) + "\n")
    run = read_run(path)
    assert run.curves["rollout/reward_mean"].values.tolist() == pytest.approx([0.01 * s for s in range(20)])
    assert [note.text for note in run.notes_of(NoteKind.CONFLICT)] == ["step 10 bears an earlier time than step 9: a clock that began anew, or another run"]


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ({"manifest": {"seed": 1}}, {"manifest": {"seed": 2}}, "seed 2 after seed 1"),
        ({"manifest": {"labels": {"science_hash": "a"}}}, {"manifest": {"labels": {"science_hash": "b"}}}, "science_hash 'b' after science_hash 'a'"),
        ({"labels": {"science_hash": "a"}}, {"labels": {"science_hash": "b"}}, "science_hash 'b' after science_hash 'a'"),
        ({"step": 0, "reward": 0.1, "run": "x"}, {"step": 9, "reward": 0.1, "run": "y"}, "run 'y' after run 'x'"),
        ({"step": 0, "reward": 0.1, "seed": 1}, {"step": 9, "reward": 0.1, "seed": 2}, "seed 2 after seed 1"),
    ],
)
def test_records_that_name_two_runs_are_refused(tmp_path, mine, theirs, words):
    path = tmp_path / "joined.jsonl"
    path.write_text("\n".join([json.dumps(mine), *_records(1, 9), json.dumps(theirs), *_records(10, 20)]) + "\n")
    with pytest.raises(UnreadableRun, match=words):
        read_run(path)
    path.write_text("\n".join([json.dumps(mine), *_records(1, 9), json.dumps(mine), *_records(10, 20)]) + "\n")
    assert len(read_run(path).steps) >= 18


def test_a_file_of_one_record_names_its_metric(tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"step": 12, "key": "entropy", "value": 1.5}) + "\n")
    run = read_run(path)
    assert (run.format, {name: curve.values.tolist() for name, curve in run.curves.items()}) == ("jsonl", {"train/entropy": [1.5]})
    path.write_text('"step": 11, "key": "entropy", "value": 1.25}\n' + json.dumps({"step": 12, "key": "entropy", "value": 1.5}) + "\n")
    assert {name: curve.values.tolist() for name, curve in read_run(path).curves.items()} == {"train/entropy": [1.5]}
