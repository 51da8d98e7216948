"""The converted checkpoint that `torch-dist` cells load is made by the runner, once."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from e2e.leases import LeaseError
from e2e.prepare import prepare
from e2e.run_plan import RunPlan, plan_run
from matrix.launch import launch
from matrix.loader import ROOT, load
from matrix.resolver import config_hash

CELL = "qwen3-30b-a3b.cpu.colocate+torch-dist"
FAKE = """
import sys, time
from pathlib import Path
print("converting", sys.argv[1], flush=True)
target = Path(sys.argv[2])
target.mkdir()          # a second conversion of the same weights fails here
time.sleep(0.3)
(target / "vime.json").write_text("{}")
"""


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    matrix = load(ROOT)
    plan = plan_run(matrix, matrix.cell(CELL), 100, tmp_path / "results")
    plan.config["model"]["torch_dist_path"] = str(tmp_path / "converted" / "weights")
    return plan


def command(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_weights_are_converted_once_also_by_two_at_a_time(plan: RunPlan):
    said: list[str] = []
    threads = [threading.Thread(target=prepare, args=(plan, said.append, command(FAKE))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert said == [f"converting {plan.config['model']['path']} to torch-dist"]
    prepare(plan, said.append, command("raise SystemExit('made again')"))
    assert len(said) == 1


def test_a_conversion_that_fails_is_the_reason_why_the_run_cannot_be_made(plan: RunPlan):
    with pytest.raises(LeaseError, match=r"could not be converted to torch-dist \(exit code 3\): no space left"):
        prepare(plan, lambda text: None, command("import sys; print('no space left'); sys.exit(3)"))
    with pytest.raises(LeaseError, match=r"\(exit code 0\): it printed nothing"):
        prepare(plan, lambda text: None, command("pass"))


def test_other_cells_are_not_prepared(tmp_path: Path):
    matrix = load(ROOT)
    prepare(plan_run(matrix, matrix.cell("qwen3-4b.cpu.colocate"), 100, tmp_path), lambda text: None, command("raise SystemExit(1)"))


def test_the_command_shown_makes_what_the_run_looks_for_and_weights_made_anew_are_converted_anew():
    matrix = load(ROOT)
    cell = matrix.cell(CELL)
    plan = plan_run(matrix, cell, 100, Path("results"))
    (shown,) = launch(matrix, cell, 100).prepare
    target = Path(plan.config["model"]["torch_dist_path"])
    assert shown.endswith(f" .cache/torch-dist/{target.name}")
    twin = cell.model.value.twin
    assert twin is not None
    assert any(target.name.endswith(start.sha256[:12]) for start in twin.warm_starts.values())
    moved = {**plan.config, "model": {**plan.config["model"], "torch_dist_path": f"/elsewhere/{target.name}"}}
    assert config_hash(plan.config, matrix) != config_hash(moved, matrix)
    inside = {**plan.config, "model": {**plan.config["model"], "torch_dist_path": f".cache/torch-dist/{target.name}"}}
    assert config_hash(plan.config, matrix) == config_hash(inside, matrix)
