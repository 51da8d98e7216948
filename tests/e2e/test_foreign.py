"""Cells that another framework runs: a real trainer of our own, started by its declared command, followed and judged from its own log."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from e2e.cell_run import Options, run_cell
from e2e.live import PlainDisplay
from e2e.records import read_record
from e2e.run_plan import finished_record, plan_run
from e2e.verdict import declared
from matrix.checks import check
from matrix.loader import Matrix, load
from matrix.outcome import Outcome
from matrix.problem import MatrixError, SelectionError
from tests.e2e.conftest import FAKE
from tests.matrix.tree import CELLS, edit

CELL = "qwen3-4b.cpu.colocate@other"
TRAINER = Path(__file__).with_name("other_trainer.py")
FRAMEWORK = f"""
name: other
title: another trainer
version: "1.2"
command: ["{{python}}", {TRAINER}, --steps, "{{steps}}", --seed, "{{seed}}", --lr, "{{train.lr}}"]
environment: {{OTHER_HOME: "{{out}}/home"}}
format: console
metrics: {{critic/rewards/mean: rollout/reward_mean}}
"""
QUIET = PlainDisplay(StringIO())


@pytest.fixture
def tree(tree: Path) -> Path:
    (tree / "frameworks").mkdir()
    (tree / "frameworks" / "other.yaml").write_text(FRAMEWORK)
    (tree / CELLS).write_text((tree / CELLS).read_text() + f"  - id: {CELL}\n    recipe: spell-backward\n    tiers: [nightly]\n    framework: other\n")
    edit(tree, "recipes/spell-backward.yaml", "delta: {first: 0.10, last: 0.025, whole: 0.020, residual: 1.7}", "delta: {first: 0.2, last: 0.1, whole: 0.1}")
    return tree


@pytest.fixture
def options(options: Options) -> Options:
    return replace(options, command=Options().command)


def with_baseline(matrix: Matrix, options: Options) -> None:
    from reports.readers import read_runs
    from reports.record import record

    cell = matrix.cell(CELL)
    made = run_cell(matrix, cell, replace(options, seeds=(0, 1, 2, 3), judge=False), QUIET)
    assert made.outcome is None, made.reasons
    runs = read_runs([options.root / cell.key / f"seed-{seed}" for seed in range(4)])
    record(runs, cell.rule, declared(matrix, cell), matrix.root / "baselines", "by the test")


def test_another_trainer_s_cell_is_judged_by_the_same_rule(tree: Path, options: Options):
    matrix = load(tree)
    with_baseline(matrix, options)
    out = StringIO()
    verdict = run_cell(matrix, matrix.cell(CELL), options, PlainDisplay(out, every_s=0.1))
    assert verdict.outcome is Outcome.PASS, verdict.reasons
    claim = "run by another trainer 1.2: that it trains the declared recipe is the declaration's claim"
    assert claim in verdict.reasons
    assert json.loads(Path(verdict.path).read_text())["candidates"][0]["provenance"]["source"] == claim
    record = read_record(options.root / "qwen3-4b.cpu.colocate__other" / "seed-100")
    assert record is not None
    assert record.command[-6:] == ["--steps", "40", "--seed", "100", "--lr", "0.0005"]
    assert record.environment["OTHER_HOME"].endswith("seed-100/home")
    assert "finished: 40/40 steps" in out.getvalue()


def test_another_trainer_that_learns_nothing_fails(tree: Path, options: Options):
    matrix = load(tree)
    with_baseline(matrix, options)
    edit(tree, "frameworks/other.yaml", '"{train.lr}"]', '"{train.lr}", --worse]')
    verdict = run_cell(load(tree), matrix.cell(CELL) and load(tree).cell(CELL), options, QUIET)
    assert verdict.outcome is Outcome.FAIL, verdict.reasons


def test_its_table_is_read_as_its_log_is(tree: Path, options: Options):
    edit(tree, "frameworks/other.yaml", '"{train.lr}"]', '"{train.lr}", --csv, "{out}/history.csv"]\ncurves: history.csv')
    edit(tree, "frameworks/other.yaml", "format: console", "format: null")
    matrix = load(tree)
    with_baseline(matrix, options)
    assert run_cell(matrix, matrix.cell(CELL), options, QUIET).outcome is Outcome.PASS


def test_a_crash_of_another_trainer_is_incomplete_with_its_last_words(tree: Path, options: Options):
    edit(tree, "frameworks/other.yaml", '"{train.lr}"]', '"{train.lr}", --die-at, "9"]')
    matrix = load(tree)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome is Outcome.INCOMPLETE
    assert "8/40 steps, exit code 1: torch.OutOfMemoryError: CUDA out of memory" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("critic/rewards/mean: rollout", "critic/reward/mean: rollout", "critic/reward/mean"),
        ("format: console", "format: console\ncurves: nowhere.log", "0/40 steps, ended by itself without an error"),
    ],
)
def test_a_log_without_the_declared_curve_is_never_a_pass(tree: Path, options: Options, old: str, new: str, reason: str):
    edit(tree, "frameworks/other.yaml", old, new)
    matrix = load(tree)
    verdict = run_cell(matrix, matrix.cell(CELL), options, QUIET)
    assert verdict.outcome in (Outcome.INCOMPLETE, Outcome.INVALID)
    assert any(reason in line for line in verdict.reasons), verdict.reasons


def test_another_version_or_command_is_another_run(tree: Path, options: Options):
    matrix = load(tree)
    run_cell(matrix, matrix.cell(CELL), replace(options, seeds=(100,), judge=False), QUIET)
    assert finished_record(plan_run(matrix, matrix.cell(CELL), 100, options.root)) is not None
    edit(tree, "frameworks/other.yaml", '"1.2"', '"1.3"')
    newer = load(tree)
    assert finished_record(plan_run(newer, newer.cell(CELL), 100, options.root)) is None


def test_a_placeholder_that_stands_for_nothing_is_an_error_with_its_place(tree: Path, options: Options):
    edit(tree, "frameworks/other.yaml", "{train.lr}", "{train.learning_rate}")
    matrix = load(tree)
    words = r"frameworks/other\.yaml:5: \{train\.learning_rate\} is no single value"
    with pytest.raises(MatrixError, match=words):
        plan_run(matrix, matrix.cell(CELL), 100, options.root)
    assert run_cell(matrix, matrix.cell(CELL), options, QUIET).outcome is Outcome.INVALID
    assert [str(problem) for problem in check(matrix) if re.search(words, str(problem))]


def test_faults_and_other_commands_are_refused_for_another_framework(tree: Path, options: Options):
    matrix = load(tree)
    with pytest.raises(SelectionError, match="planted faults are for vime's cells"):
        plan_run(matrix, matrix.cell(CELL), 100, options.root, FAKE)


def test_a_framework_that_is_not_declared_is_named_with_the_nearest(tree: Path):
    edit(tree, CELLS, "framework: other", "framework: othr")
    with pytest.raises(MatrixError, match=r"cells/qwen3-4b\.yaml:\d+: frameworks/othr\.yaml is not declared; nearest: other"):
        load(tree)


def test_the_manifest_says_whose_run_it_is(tree: Path, options: Options):
    matrix = load(tree)
    run_cell(matrix, matrix.cell(CELL), replace(options, seeds=(100,), judge=False), QUIET)
    manifest = json.loads((options.root / matrix.cell(CELL).key / "seed-100" / "manifest.json").read_text())
    assert manifest["framework"] == {"name": "other", "version": "1.2"}
    assert manifest["labels"]["cell"] == CELL
    assert (manifest["seed"], manifest["planned_steps"]) == (100, 40)
