"""Following a run that writes, tears, restarts and is written anew."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.follow import Follower, LineTail


def line(step: int, reward: float = 0.5) -> bytes:
    return (json.dumps({"step": step, "time": 1.0 * step, "metrics": {"r": reward}}) + "\n").encode()


@given(st.lists(st.integers(1, 60), max_size=30))
@settings(max_examples=60)
def test_however_a_file_arrives_every_whole_line_counts_once(tmp_path_factory: object, sizes: list[int]):
    directory = Path(tmp_path_factory.mktemp("run"))  # type: ignore[attr-defined]
    whole = b"".join(line(step) for step in range(10))
    follower = Follower(directory, "r", 10)
    with (directory / "metrics.jsonl").open("ab", buffering=0) as out:
        sent = 0
        for size in [*sizes, len(whole)]:
            out.write(whole[sent : sent + size])
            sent += size
            assert follower.look().done == whole[:sent].count(b"\n")
    assert (follower.progress.done, follower.broken_lines) == (10, 0)


def test_a_torn_last_line_is_no_step(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_bytes(line(0) + line(1)[:20])
    follower = Follower(tmp_path, "r", 3)
    assert follower.look().done == 1
    with (tmp_path / "metrics.jsonl").open("ab") as out:
        out.write(line(1)[20:])
    assert follower.look().done == 2


def test_a_line_that_is_no_record_is_counted_and_no_step(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_bytes(b"rubbish\n[1]\n\n" + line(0) + b'{"step": "1", "metrics": {}}\n{"step": 1}\n')
    follower = Follower(tmp_path, "r", 3)
    assert (follower.look().done, follower.broken_lines) == (1, 2)


def test_a_file_written_anew_is_read_anew_and_no_step_counts_twice(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(line(0) + line(1) + line(2))
    follower = Follower(tmp_path, "r", 5)
    follower.look()
    file.write_bytes(line(0) + line(1))
    assert follower.look().done == 3
    with file.open("ab") as out:
        out.write(line(2) + line(3))
    assert follower.look().done == 4


def test_a_file_that_is_not_there_yet_has_no_lines(tmp_path: Path):
    assert LineTail(tmp_path / "metrics.jsonl").new() == []
