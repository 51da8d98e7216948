"""The runner against a process that ends in every way a run can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import psutil
import pytest

from e2e.cell_run import Options
from e2e.live import PlainDisplay
from e2e.records import RunRecord, read_record
from e2e.run_plan import RunPlan, finished_before, finished_record, plan_run
from e2e.runner import run
from matrix.loader import Matrix
from tests.e2e.conftest import FAKE
from tests.matrix.tree import CELL


@pytest.fixture
def plan(matrix: Matrix, options: Options) -> RunPlan:
    return plan_run(matrix, matrix.cell(CELL), 100, options.root, FAKE)


def hurried(plan: RunPlan) -> RunPlan:
    """With limits of a second or three, for runs that hang."""
    return replace(plan, limits=plan.limits.model_copy(update={"start_s": 3.0, "stall_s": 1.5, "wall_s": 20.0}))


def made(plan: RunPlan, **options: object) -> tuple[RunRecord, str]:
    out = StringIO()
    record = run(plan, PlainDisplay(out, every_s=0.1), **options)  # type: ignore[arg-type]
    return record, out.getvalue()


def test_a_whole_run_is_finished_and_on_record(plan: RunPlan):
    record, shown = made(plan)
    assert (record.finished, record.exit, record.steps, record.planned_steps) == (True, 0, 40, 40)
    assert read_record(plan.directory) == record
    assert json.loads((plan.directory / "input.yaml").read_text())["seed"] == 100
    assert (plan.directory / "stdout.log").read_text() == "training\n"
    assert f"{CELL} seed 100  step " in shown
    assert "reward 0." in shown
    assert " left" in shown


@pytest.mark.parametrize(
    ("behaviour", "steps", "outcome", "reason"),
    [
        ("crash at 3", 3, "INCOMPLETE", "3/40 steps, exit code 3: train: loss is not finite at step 3 (nan)"),
        ("crash at 0", 0, "INCOMPLETE", "0/40 steps, exit code 3"),
        ("short at 12", 12, "INCOMPLETE", "12/40 steps, ended by itself without an error"),
        ("killed at 7", 7, "INCOMPLETE", "7/40 steps, killed by SIGKILL"),
        ("torn at 7", 7, "INCOMPLETE", "7/40 steps, killed by SIGKILL"),
        ("stall at 4", 4, "INCOMPLETE", "stalled: nothing recorded for 1.5 s, in stage 'after step 3'"),
        ("stall at 0", 0, "INCOMPLETE", "no step within the start limit of 3 s, in stage 'start'"),
    ],
)
def test_a_run_that_does_not_reach_its_end_says_where_and_why(
    plan: RunPlan, behave: Callable[..., None], behaviour: str, steps: int, outcome: str, reason: str
):
    behave(seed_100=behaviour)
    record, _ = made(hurried(plan) if "stall" in behaviour else plan)
    assert (record.steps, record.outcome) == (steps, outcome)
    assert reason in record.reason
    assert not record.finished


def test_the_wall_limit_ends_a_run_that_goes_on(plan: RunPlan, behave: Callable[..., None]):
    behave(seed_100="stall at 4")
    plan.limits = plan.limits.model_copy(update={"wall_s": 1.0})
    record, _ = made(plan)
    assert "over the wall limit of 1 s, in stage 'after step 3'" in record.reason


def test_a_run_lost_to_the_machine_is_made_again_on_record(plan: RunPlan, behave: Callable[..., None]):
    behave(seed_100="infra at 1")
    record, shown = made(plan)
    assert (record.finished, record.attempt, len(record.earlier)) == (True, 2, 1)
    assert record.earlier[0]["infra_class"] == "disk-full"
    assert "lost to the machine (disk-full)" in shown
    assert (plan.directory.parent / "superseded" / "seed-100.1" / "runner.json").is_file()


def test_infra_retries_are_bounded(plan: RunPlan, behave: Callable[..., None]):
    behave(seed_100="infra at 9")
    record, _ = made(plan)
    assert (record.outcome, record.attempt) == ("INFRA", 3)


def test_a_finished_run_is_the_same_by_configuration_command_and_code(plan: RunPlan, monkeypatch: pytest.MonkeyPatch):
    first, _ = made(plan)
    assert finished_record(plan) == first
    other = replace(plan, hash="of another configuration", command=("other", "command"))
    found = finished_before(other)
    assert found is not None
    assert found.differs == ("configuration", "command")
    assert finished_record(other) is None
    monkeypatch.setattr("e2e.run_plan.code_hash", lambda: "of another code")
    assert finished_record(plan) is None
    assert finished_record(replace(plan, same_code=False)) == first
    second, _ = made(plan)
    assert (second.code_hash, second.attempt) == ("of another code", 1)
    assert (plan.directory.parent / "superseded" / "seed-100.1").is_dir()


def test_an_unfinished_run_is_made_again(plan: RunPlan, behave: Callable[..., None]):
    behave(seed_100="crash at 3")
    made(plan)
    behave(seed_100="ok")
    assert made(plan)[0].finished


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_nothing_is_left_of_a_run_that_ignores_being_stopped(plan: RunPlan, behave: Callable[..., None]):
    behave(seed_100="deaf at 2")
    begin = time.monotonic()
    record, _ = made(hurried(plan))
    assert "stalled" in record.reason
    assert time.monotonic() - begin < 15
    assert all(gone(int(pid)) for pid in (plan.directory / "child.pid").read_text().split())


def test_what_a_finished_run_leaves_behind_is_ended_and_named(plan: RunPlan, behave: Callable[..., None]):
    behave(seed_100="litter")
    record, _ = made(plan)
    assert record.finished
    assert any("time.sleep(600)" in line for line in record.left_over)
    assert gone(int((plan.directory / "child.pid").read_text()))


RUN_ONE = """
import sys
from pathlib import Path
from e2e.run_plan import plan_run
from e2e.runner import run
from e2e.live import PlainDisplay
from matrix.loader import load
tree, root, fake = sys.argv[1:]
matrix = load(Path(tree))
try:
    run(plan_run(matrix, matrix.cell("qwen3-4b.cpu.colocate"), 100, Path(root), (sys.executable, fake)), PlainDisplay())
except KeyboardInterrupt:
    sys.exit(130)
"""


def start_elsewhere(tree: Path, plan: RunPlan) -> tuple[subprocess.Popen[bytes], list[int]]:
    """The runner in a process of its own, and the ids of the run's processes once they are there."""
    runner = subprocess.Popen([sys.executable, "-c", RUN_ONE, str(tree), str(plan.root), FAKE[1]], stderr=subprocess.DEVNULL)
    pids = plan.directory / "child.pid"
    end = time.monotonic() + 20
    while not (pids.is_file() and len(pids.read_text().split()) == 2) or not (plan.directory / "metrics.jsonl").is_file():
        assert time.monotonic() < end, "the run did not start"
        time.sleep(0.05)
    return runner, [int(pid) for pid in pids.read_text().split()]


def test_ctrl_c_ends_everything_within_ten_seconds(tree: Path, plan: RunPlan, behave: Callable[..., None]):
    behave(seed_100="deaf at 2")
    runner, pids = start_elsewhere(tree, plan)
    begin = time.monotonic()
    runner.send_signal(signal.SIGINT)
    assert runner.wait(12) == 130
    assert time.monotonic() - begin < 10
    assert all(map(gone, pids))
    record = read_record(plan.directory)
    assert record is not None
    assert (record.stopped_by, record.outcome) == ("interrupted", "INCOMPLETE")


def test_a_run_dies_with_its_runner(tree: Path, plan: RunPlan, behave: Callable[..., None]):
    behave(seed_100="deaf at 2")
    runner, pids = start_elsewhere(tree, plan)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait(5)
    end = time.monotonic() + 10
    while not all(map(gone, pids)):
        assert time.monotonic() < end, "the run outlived its runner"
        time.sleep(0.1)


def test_a_command_that_does_not_exist_is_an_ending_like_any_other(plan: RunPlan):
    record, _ = made(replace(plan, command=("/nowhere/vime",)))
    assert record.exit == 127
    assert "cannot start /nowhere/vime" in record.reason
