"""The worked example of docs/running-cells.md, done."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from e2e.run_plan import plan_run
from matrix.checks import check
from matrix.launch import launch
from matrix.loader import ROOT, load

EXAMPLE = re.compile(r"```yaml \{file=matrix/(?P<file>\S+?)(?P<append> append)?\}\n(?P<text>.*?)```", re.DOTALL)
PAGE = ROOT.parent / "docs" / "running-cells.md"


def test_another_framework_as_the_page_declares_it(tree: Path, tmp_path: Path):
    for found in EXAMPLE.finditer(PAGE.read_text()):
        file = tree / found["file"]
        file.parent.mkdir(exist_ok=True)
        file.write_text((file.read_text() if found["append"] else "") + found["text"])
    matrix = load(tree)
    assert [problem for problem in check(matrix) if "frameworks/verl" in str(problem)] == []
    plan = plan_run(matrix, matrix.cell("qwen3-4b.cpu.colocate@verl"), 100, tmp_path)
    assert plan.full_command()[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    assert "actor_rollout_ref.actor.optim.lr=0.0005" in plan.full_command()
    assert plan.environment() == {"VERL_SEED": "100"}
    told = launch(matrix, plan.cell, 100).run
    assert told[1].startswith("VERL_SEED=100 python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo ")
    assert told[1].endswith("> results/qwen3-4b.cpu.colocate__verl/seed-100/stdout.log")


def test_the_page_names_every_option():
    from e2e.plugin import pytest_addoption

    class Parser:
        names: list[str] = []

        def getgroup(self, *_: str) -> Parser:
            return self

        def addoption(self, name: str, **_: object) -> None:
            self.names.append(name)

    pytest_addoption(Parser())  # type: ignore[arg-type]
    page = PAGE.read_text()
    assert [name for name in Parser.names if name not in page and name not in ("--train-command", "--matrix")] == []
