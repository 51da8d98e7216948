"""docs/public-curves.md, line by line, where a folder with those curves is given: pytest tests/reports/test_public_curves.py --curves FOLDER."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from matrix.outcome import Outcome
from reports.cli import app
from reports.judge import judge
from reports.readers import read_run
from reports.rules import resolve
from reports.verdict import Declared

PAGE = Path(__file__).parents[2] / "docs" / "public-curves.md"
LINE = re.compile(r"^python -m reports (judge .*?) +# → (\w+)(?:: (.*))?$", re.MULTILINE)
LINES = LINE.findall(PAGE.read_text(encoding="utf-8"))
VOUCHED = Declared(assume_comparable=True)
TWIN = {"planned_steps": 100, "first": 5, "last": 25, "delta_first": 0.12, "delta_last": 0.03, "delta_whole": 0.025, "sided": "two"}
GRPO = {"first": 5, "last": 10, "delta_first": 0.05, "delta_last": 0.12, "delta_whole": 0.08, "max_seeds": 1}


@pytest.fixture
def curves(request):
    folder = request.config.getoption("--curves")
    if folder is None:
        pytest.skip("no folder of public curves is given (--curves FOLDER)")
    return Path(folder).resolve()


def test_the_page_has_a_line_for_every_case():
    assert len(LINES) == 16
    assert {outcome for _, outcome, _ in LINES} == {"PASS", "FAIL", "INVALID", "INCOMPLETE"}


@pytest.mark.parametrize(("command", "outcome", "words"), LINES, ids=[f"{i}-{outcome}" for i, (_, outcome, _) in enumerate(LINES)])
def test_every_line_of_the_page_holds(curves, command, outcome, words, monkeypatch):
    monkeypatch.chdir(curves)
    monkeypatch.setenv("COLUMNS", "2000")
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == Outcome(outcome).exit_code, done.output
    assert words in " ".join(done.output.split())


def test_any_five_healthy_seeds_pass_the_other_three(curves):
    runs = [read_run(curves / "twin_spell" / f"healthy_seed{seed}.jsonl") for seed in range(8)]
    rule = resolve(runs, None, TWIN, None, True).rule
    for five in itertools.combinations(range(8), 5):
        base, others = [runs[i] for i in five], [runs[i] for i in range(8) if i not in five]
        for candidates in ([others[0]], [others[1]], [others[2]], others):
            assert judge(candidates, base, rule, VOUCHED).outcome is Outcome.PASS, five


def test_every_fault_fails_at_once_against_any_five(curves):
    healthy = [read_run(curves / "twin_spell" / f"healthy_seed{seed}.jsonl") for seed in range(8)]
    broken = [read_run(curves / "twin_spell" / f"{fault}_seed{seed}.jsonl") for fault in ("flip", "nosync", "shuffle", "lr_x0.1") for seed in (0, 1)]
    rule = resolve(healthy, None, TWIN, None, True).rule
    for five in itertools.combinations(healthy, 5):
        assert [judge([run], five, rule, VOUCHED).outcome for run in broken] == [Outcome.FAIL] * 8


def test_any_five_grpo_runs_accept_the_sixth(curves):
    runs = [read_run(curves / "mlperf_qwen35_397b_grpo" / "GBS256" / f"seed_{seed}.out") for seed in range(1, 7)]
    rule = resolve(runs, None, GRPO, None, True, ["early_stop=true"]).rule
    for run in runs:
        assert judge([run], [other for other in runs if other is not run], rule, VOUCHED).outcome is Outcome.PASS
