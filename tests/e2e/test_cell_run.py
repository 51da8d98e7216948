"""A cell's seeds, looks and verdict; the judge is `reports`, the baseline is made of fake runs by the documented command."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import pytest

from e2e.cell_run import Options, run_cell
from e2e.faults import FAULTS, named, plant
from e2e.leases import DevicePool
from e2e.live import PlainDisplay
from e2e.machine import Found
from e2e.records import read_record, write_json
from e2e.run_plan import plan_run
from e2e.runner import _begun, own, run
from e2e.verdict import CellVerdict, Unfinished, judge_cell, unjudged
from matrix.loader import DeclaredCell, Matrix, load
from matrix.outcome import Outcome
from matrix.problem import SelectionError
from matrix.resolver import baseline_directory
from matrix.status import latest
from tests.e2e.conftest import NPU_CELL
from tests.matrix.tree import CELL, CELLS, RECIPE, edit

QUIET = PlainDisplay(StringIO())


class Judge:
    """Says what it is told, one outcome a look, and remembers what it was asked."""

    def __init__(self, *outcomes: Outcome):
        self.outcomes = list(outcomes)
        self.looks: list[tuple[tuple[int, ...], int]] = []

    def __call__(
        self, matrix: Matrix, cell: DeclaredCell, root: Path, seeds: tuple[int, ...], looks_done: int, unfinished: Sequence[Unfinished]
    ) -> CellVerdict:
        self.looks.append((seeds, looks_done))
        return CellVerdict(str(cell), self.outcomes.pop(0), ("said so",), seeds)


def test_seeds_are_added_while_the_verdict_is_inconclusive_and_no_longer(matrix: Matrix, options: Options):
    judge = Judge(Outcome.INCONCLUSIVE, Outcome.PASS)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET, judge)
    assert (verdict.outcome, verdict.seeds) == (Outcome.PASS, (100, 101))
    assert judge.looks == [((100,), 0), ((100, 101), 1)]


def test_no_more_seeds_than_the_rule_allows(matrix: Matrix, options: Options):
    judge = Judge(*[Outcome.INCONCLUSIVE] * 3)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET, judge)
    assert (verdict.outcome, verdict.seeds) == (Outcome.INCONCLUSIVE, (100, 101, 102))


def test_a_verdict_is_never_retried(matrix: Matrix, options: Options):
    judge = Judge(Outcome.FAIL)
    assert run_cell(matrix, matrix.cell(CELL), options, QUIET, judge).outcome is Outcome.FAIL
    assert judge.looks == [((100,), 0)]


def test_seeds_asked_for_are_the_only_ones(matrix: Matrix, options: Options):
    judge = Judge(Outcome.INCONCLUSIVE)
    verdict = run_cell(matrix, matrix.cell(CELL), replace(options, seeds=(104, 107)), QUIET, judge)
    assert (verdict.outcome, verdict.seeds) == (Outcome.INCONCLUSIVE, (104, 107))


def test_runs_made_without_judging_are_judged_later_from_what_lies_there(matrix: Matrix, options: Options):
    cell = matrix.cell(CELL)
    part = run_cell(matrix, cell, replace(options, seeds=(100,), judge=False), QUIET)
    assert (part.outcome, part.path) == (None, "")
    run_cell(matrix, cell, replace(options, seeds=(101,), judge=False), QUIET)
    judge = Judge(Outcome.PASS)
    verdict = run_cell(matrix, cell, replace(options, judge_only=True), QUIET, judge)
    assert (verdict.outcome, verdict.seeds) == (Outcome.PASS, (100, 101))


def test_judging_nothing_is_not_run(matrix: Matrix, options: Options):
    verdict = run_cell(matrix, matrix.cell(CELL), replace(options, judge_only=True), QUIET)
    assert verdict.outcome is Outcome.NOT_RUN
    assert "no run of this cell lies in" in verdict.reasons[0]
    assert json.loads(Path(verdict.path).read_text())["outcome"] == "NOT_RUN"


def test_a_seed_that_a_fan_out_lost_is_not_left_out_of_the_verdict(matrix: Matrix, options: Options):
    """Three agents, one of them lost: two good runs are no verdict over three."""
    cell = matrix.cell(CELL)
    for seed in (100, 102):
        run_cell(matrix, cell, replace(options, seeds=(seed,), judge=False), QUIET)
    asked: list[Sequence[Unfinished]] = []

    def judge(matrix: Matrix, cell: DeclaredCell, root: Path, seeds: tuple[int, ...], looks: int, unfinished: Sequence[Unfinished]) -> CellVerdict:
        asked.append(unfinished)
        return judge_cell(matrix, cell, root, seeds, looks, unfinished)

    verdict = run_cell(matrix, cell, replace(options, judge_only=True, seeds=(100, 101, 102)), QUIET, judge)
    assert [(run.seed, run.outcome) for run in asked[0]] == [(101, Outcome.NOT_RUN)]
    assert any("seed 101: no run lies in" in reason for reason in verdict.reasons)
    assert verdict.outcome is not Outcome.PASS


def test_a_recipe_s_first_seeds_are_expected_of_a_fan_out(tree: Path, options: Options):
    edit(tree, RECIPE, "  initial: 1", "  initial: 2")
    matrix = load(tree)
    run_cell(matrix, matrix.cell(CELL), replace(options, seeds=(101,), judge=False), QUIET)
    verdict = run_cell(matrix, matrix.cell(CELL), replace(options, judge_only=True), QUIET)
    assert any("seed 100: no run lies in" in reason for reason in verdict.reasons)


def test_a_run_whose_runner_was_killed_is_not_whole_although_its_steps_are(matrix: Matrix, options: Options):
    cell = matrix.cell(CELL)
    run_cell(matrix, cell, replace(options, seeds=(100,), judge=False), QUIET)
    file = options.root / cell.key / "seed-100" / "runner.json"
    plan = plan_run(matrix, cell, 100, options.root, options.command)
    write_json(file, asdict(_begun(plan, [])))  # what lies there until the end is seen
    verdict = run_cell(matrix, cell, replace(options, judge_only=True), QUIET)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert any("its runner was lost" in reason for reason in verdict.reasons)


def test_hardware_that_is_not_here_is_not_run_with_the_reason(npu_tree: Path, options: Options):
    matrix = load(npu_tree)
    verdict = run_cell(matrix, matrix.cell(NPU_CELL), options, QUIET)
    assert (verdict.outcome, verdict.reasons) == (Outcome.NOT_RUN, ("no Atlas 800T A2 here: there is no /dev/davinci<N>",))
    assert json.loads(Path(verdict.path).read_text())["outcome"] == "NOT_RUN"
    assert run_cell(matrix, matrix.cell(NPU_CELL), options, QUIET).path == "", "once for one reason"
    part = run_cell(matrix, matrix.cell(NPU_CELL), replace(options, judge=False), QUIET)
    assert (part.outcome, part.path) == (Outcome.NOT_RUN, "")


def test_not_run_never_stands_in_front_of_what_was_judged(npu_tree: Path, options: Options):
    matrix = load(npu_tree)
    cell = matrix.cell(NPU_CELL)
    unjudged(matrix, cell, options.root, Outcome.INCOMPLETE, "yesterday, on the machine")
    verdict = run_cell(matrix, cell, options, QUIET)
    assert (verdict.outcome, verdict.path) == (Outcome.NOT_RUN, "")
    found = latest(options.root / cell.key)
    assert found is not None
    assert found.outcome is Outcome.INCOMPLETE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`machine(4)`: so many NPUs of the kind are here."""
    return lambda count: monkeypatch.setattr("e2e.machine.probed", lambda platform: Found(count, ("910B1",) * count, "npu-smi info -m"))


def test_a_cell_gets_its_devices_and_no_others_shown(npu_tree: Path, options: Options, machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch):
    machine(8)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    matrix = load(npu_tree)
    cell = matrix.cell("qwen3-4b.a2.non-colocate")
    run_cell(matrix, cell, replace(options, judge=False), QUIET)
    record = read_record(options.root / cell.key / "seed-100")
    assert record is not None
    assert record.environment == {"HCCL_CONNECT_TIMEOUT": "600", "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4"}
    assert record.leased_devices == [0, 1, 2, 3, 4]
    seen = json.loads((options.root / cell.key / "seed-100" / "environment.json").read_text())
    assert seen["ASCEND_RT_VISIBLE_DEVICES"] == "0,1,2,3,4"


@pytest.mark.parametrize(
    ("cell", "visible", "reason"),
    [
        (NPU_CELL, "0,1,2,3", "needs 8 devices of a2; 4 may be used here ([0, 1, 2, 3])"),
        ("qwen3-4b.a2.colocate@two-nodes", None, "takes 16 devices, 2 nodes of a2: the runner leases those of one machine"),
    ],
)
def test_a_cell_that_can_never_run_here_does_not_wait(
    npu_tree: Path, options: Options, machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, cell: str, visible: str | None, reason: str
):
    machine(8)
    if visible:
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", visible)
    matrix = load(npu_tree)
    verdict = run_cell(matrix, matrix.cell(cell), options, QUIET)
    assert verdict.outcome is Outcome.NOT_RUN
    assert reason in verdict.reasons[0]


def test_a_cell_that_needs_eight_waits_for_eight(npu_tree: Path, options: Options, machine: Callable[[int], None]):
    machine(8)
    matrix, out = load(npu_tree), StringIO()
    assert options.lease_directory is not None
    holding = DevicePool("npu", (3,), directory=options.lease_directory)
    free, done = threading.Event(), list[CellVerdict]()
    with holding.lease(1, "somebody else", 1):
        waiter = threading.Thread(target=lambda: done.append(run_cell(matrix, matrix.cell(NPU_CELL), replace(options, judge=False), PlainDisplay(out))))
        waiter.start()
        while "waiting for 8 devices of npu; held by somebody else" not in out.getvalue():
            assert waiter.is_alive()
            free.wait(0.05)
        assert not (options.root / NPU_CELL / "seed-100").exists()
    waiter.join(30)
    assert done[0].outcome is None, done


def test_runs_that_lie_there_finished_are_judged_without_their_hardware(npu_tree: Path, options: Options, machine: Callable[[int], None]):
    machine(8)
    matrix = load(npu_tree)
    run_cell(matrix, matrix.cell(NPU_CELL), replace(options, judge=False), QUIET)
    machine(0)
    assert run_cell(matrix, matrix.cell(NPU_CELL), options, QUIET).outcome is Outcome.NO_BASELINE


def test_declarations_at_fault_make_their_own_cell_invalid(tree: Path, options: Options):
    (tree / CELLS).write_text((tree / CELLS).read_text() + "    config: {train: {lr: 1.0e-6}}\n")
    matrix = load(tree)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome is Outcome.INVALID
    assert "train.lr = 1e-06 contradicts 0.0005" in verdict.reasons[0]


def test_a_cell_that_lacks_its_weights_is_not_run_and_says_how_to_make_them(tree: Path, options: Options):
    edit(tree, RECIPE, "warm_start: spell-backward", "warm_start: no-such-start")
    matrix = load(tree)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome is Outcome.NOT_RUN
    assert "the twin has no warm start 'no-such-start'" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: "", "is missing or empty"),
        (lambda text: re.sub(r'("rollout/reward_mean": )[0-9.]+', r"\g<1>0.0", text), "a constant curve is no baseline"),
        (lambda text: text.replace('"rollout/reward_mean": 0', '"rollout/reward_mean": NaN, "x": 0', 1), "rollout/reward_mean is nan: no baseline"),
        (lambda text: text[: len(text) // 2].rsplit("\n", 1)[0] + "\n", "steps of 40 planned"),
    ],
)
def test_a_broken_golden_is_invalid_before_any_device_is_booked(matrix: Matrix, options: Options, damage: Callable[[str], str], reason: str):
    """Zero bytes, zeros, "nan" text, a short one: no run is made that could only be compared with that."""
    cell = matrix.cell(CELL)
    made = run_cell(matrix, cell, replace(options, seeds=(0,), judge=False), QUIET)
    assert made.outcome is None
    folder = baseline_directory(cell, matrix)
    folder.mkdir(parents=True)
    shutil.copytree(options.root / cell.key / "seed-0", folder / "seed-0")
    (folder / "baseline.json").write_text(json.dumps({"runs": [{"path": "seed-0", "seed": 0}]}))
    file = folder / "seed-0" / "metrics.jsonl"
    file.write_text(damage(file.read_text()))
    verdict = run_cell(matrix, cell, options, QUIET)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reasons[0].startswith("the baseline is broken, so nothing was run: ")
    assert reason in verdict.reasons[0]
    assert not (options.root / cell.key / "seed-100").exists()


def test_two_sessions_on_one_results_root_make_a_run_once(matrix: Matrix, options: Options):
    out, cell = StringIO(), matrix.cell(CELL)
    plan = plan_run(matrix, cell, 100, options.root, options.command)
    done: list[CellVerdict] = []
    with own(plan, QUIET):
        other = threading.Thread(target=lambda: done.append(run_cell(matrix, cell, replace(options, judge=False), PlainDisplay(out))))
        other.start()
        while "is being made by another session: waiting for it" not in out.getvalue():
            assert other.is_alive()
        first = run(plan, QUIET)
    other.join(30)
    assert "finished before (40 steps): not run again" in out.getvalue()
    assert read_record(plan.directory) == first


def test_a_run_that_another_session_never_ends_is_not_run_in_the_end(matrix: Matrix, options: Options, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("e2e.runner.ELSEWHERE_WAIT_S", 0.1)
    with own(plan_run(matrix, matrix.cell(CELL), 100, options.root, options.command), QUIET):
        verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome is Outcome.NOT_RUN
    assert "is still being made by another session" in verdict.reasons[0]


def test_a_baseline_keeps_what_other_code_made_and_a_candidate_does_not(matrix: Matrix, options: Options, monkeypatch: pytest.MonkeyPatch):
    cell, out = matrix.cell(CELL), StringIO()
    run_cell(matrix, cell, replace(options, seeds=(3,), judge=False), QUIET)
    monkeypatch.setattr("e2e.run_plan.code_hash", lambda: "newer")
    run_cell(matrix, cell, replace(options, seeds=(3,), judge=False, same_code=False), PlainDisplay(out))
    assert "finished before by other code (40 steps): not run again" in out.getvalue()
    run_cell(matrix, cell, replace(options, seeds=(3,), judge=False), PlainDisplay(out))
    assert "finished before with another code: made again" in out.getvalue()


def test_without_a_baseline_the_verdict_says_so(matrix: Matrix, options: Options):
    assert run_cell(matrix, matrix.cell(CELL), options, QUIET).outcome is Outcome.NO_BASELINE


@pytest.mark.parametrize(
    ("behaviour", "outcome", "reason"),
    [
        ("crash at 0", Outcome.INCOMPLETE, "seed 100: 0/40 steps, exit code 3"),
        ("crash at 9", Outcome.INCOMPLETE, "seed 100: 9/40 steps, exit code 3"),
        ("killed at 9", Outcome.INCOMPLETE, "seed 100: 9/40 steps, killed by SIGKILL"),
        ("infra at 9", Outcome.INFRA, "seed 100: 0/40 steps, exit code 3: OSError: [Errno 28] No space left on device"),
    ],
)
def test_a_run_without_an_end_decides_the_cell(matrix: Matrix, options: Options, behave: Callable[..., None], behaviour: str, outcome: Outcome, reason: str):
    behave(seed_100=behaviour)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome is outcome
    assert any(reason in line for line in verdict.reasons), verdict.reasons
    kept = json.loads(Path(verdict.path).read_text())
    assert kept["outcome"] == str(outcome)
    assert kept["declared"]["cell"] == CELL


def test_all_steps_and_then_an_error_is_no_pass(matrix: Matrix, options: Options, behave: Callable[..., None]):
    behave(seed_100="crash at 40")
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "40/40 steps, exit code 3" in verdict.reasons[0]


def test_a_fault_is_planted_beside_the_cell_s_own_results(matrix: Matrix, options: Options):
    cell = matrix.cell(CELL)
    slow = plant("lr-tenth", options, cell)
    assert (slow.root, slow.overrides, slow.command) == (options.root / "fault-lr-tenth", ("train.lr=5e-05",), options.command)
    flipped = plant("sign-flip", options, cell)
    assert flipped.command[1:] == ("-m", "e2e.faults", "sign-flip", "train")
    with pytest.raises(SelectionError, match="nearest: sign-flip"):
        named("sign-flipp")
    assert {"lr-tenth", "rewards-shuffled", "sync-off", "sign-flip"} <= set(FAULTS)
