"""Builds of the local executor, of the pipelines that Buildkite gets, with stand-ins for cells: adaptive seeds, lost agents, released cells, re-uploads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.local.executor import Build, Options
from ci.local.steps import State
from ci.steps import BLOCK
from tests.ci.conftest import tell, write_settings
from tests.ci.tree import example_tree

ROOT = Path(__file__).parents[2]
NON, COLOCATE = "qwen3-4b.cpu.non-colocate", "qwen3-4b.cpu.colocate"
LEARN = f"{COLOCATE}@learn"
pytestmark = pytest.mark.heavy

Play = Callable[..., Build]


@pytest.fixture
def play(tmp_path: Path, fakes: Path) -> Play:
    """Run the pipeline of a tier over the example tree; each job in a folder of its own."""
    tree = example_tree(tmp_path)
    settings = write_settings(tmp_path / "settings.yaml", fakes)
    said: list[str] = []

    def run(tier: str = "smoke", release: str = "", twice: bool = False, **changes: object) -> Build:
        if changes:
            write_settings(settings, fakes, **changes)
        options = Options(tmp_path / "build", ROOT, build="b1", agents=4, apart=True, release={BLOCK: release} if release else {}, grace_s=1, say=said.append)
        path = {**options.environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        options.environment = path
        build = Build(options)
        command = f"{sys.executable} -m ci pipeline --tier {tier} --settings {settings} --matrix {tree} --upload"
        build.run({"steps": [{"key": "pipeline", "command": [command, command] if twice else command}]})
        build.said = said  # type: ignore[attr-defined]
        build.tree = tree  # type: ignore[attr-defined]
        return build

    return run


def gate_of(build: Build, name: str = "gate") -> dict:
    return json.loads((build.store.artifacts / "results" / "b1" / name / "gate.json").read_text())


def outcomes(build: Build, name: str = "gate") -> dict[str, str]:
    return {cell["cell"]: cell["outcome"] for cell in gate_of(build, name)["cells"]}


def keys(build: Build) -> list[str]:
    return [step.key for step in build.steps if step.key and step.jobs]


def exit_of(build: Build, key: str = "gate") -> int | None:
    return build.step(key).jobs[0].attempts[-1].exit


def test_seeds_are_added_lost_agents_replaced_and_failed_runs_left_alone(play, fakes):
    tell(
        fakes,
        **{
            NON: {"looks": ["INCONCLUSIVE", "INCONCLUSIVE", "PASS"]},
            COLOCATE: {"runs": {"100": ["lost", "lost", 0]}},
            LEARN: {"runs": {"100": [11, 0]}, "looks": ["INCOMPLETE"]},
        },
    )
    build = play("nightly")
    order = [f"run:{NON}:100", f"judge:{NON}:1", f"run:{NON}:101", f"judge:{NON}:2", f"run:{NON}:102", f"judge:{NON}:3", "report", "gate"]
    assert [name for name in build.started if name in order] == order, "\n".join(build.said)
    assert f"run:{COLOCATE}:101" not in build.started
    assert {"collect:1", "collect:2", "collect:3"} <= set(build.started)
    assert [attempt.exit for attempt in build.step(f"run:{COLOCATE}:100").jobs[0].attempts] == [-1, -1, 0]
    assert [attempt.exit for attempt in build.step("run:qwen3-4b.cpu.colocate__learn:100").jobs[0].attempts] == [11]
    found = outcomes(build)
    assert {cell: found[cell] for cell in (NON, COLOCATE, LEARN)} == {NON: "PASS", COLOCATE: "PASS", LEARN: "INCOMPLETE"}
    assert exit_of(build) == 11


def test_the_recipes_limit_ends_it_a_third_loss_and_a_missing_verdict_are_told(play, fakes):
    tell(fakes, **{NON: {"looks": ["INCONCLUSIVE"]}, COLOCATE: {"runs": {"100": ["lost"]}}, LEARN: {"looks": ["none"]}})
    build = play("nightly", checks=[{"key": "lint", "label": "lint", "commands": ["false"], "minutes": 1}])
    assert build.step(f"run:{COLOCATE}:100").state is State.SOFT_FAILED
    found = outcomes(build)
    assert {cell: found[cell] for cell in (NON, COLOCATE, LEARN)} == {NON: "INCONCLUSIVE", COLOCATE: "NOT_RUN", LEARN: "NOT_RUN"}
    (cell,) = [cell for cell in gate_of(build)["cells"] if cell["cell"] == NON]
    assert cell["note"] == "all 3 seeds that the recipe allows were run"
    assert exit_of(build) == 10
    assert gate_of(build)["checks"] == {"lint": "hard_failed"}


def test_the_tiers_device_hours_end_it_too(play, fakes):
    tell(fakes, **{NON: {"looks": ["INCONCLUSIVE"]}, COLOCATE: {"looks": ["INCONCLUSIVE"]}})
    build = play()  # smoke: 0.2 device-hours; the first looks take 0.075, a seed 0.05 or 0.025
    spent = 0.075 + sum(float(value) for key, value in build.store.meta.items() if key.startswith("vime:seed:"))
    assert 0.15 < spent <= 0.2
    notes = [cell["note"] for cell in gate_of(build)["cells"]]
    assert any(note.startswith("tier smoke has 0.0") for note in notes), notes
    assert exit_of(build) == 10


def test_released_cells_run_and_pass_a_gate_of_their_own_after_a_failed_check(play, fakes):
    tell(fakes, **{LEARN: {"looks": ["INCONCLUSIVE", "FAIL"]}})
    build = play(release="qwen3-4b.cpu.colocate__learn", checks=[{"key": "lint", "label": "lint", "commands": ["false"], "minutes": 1}])
    assert (exit_of(build), gate_of(build)["status"]) == (3, "lint hard_failed; 2 PASS")
    assert outcomes(build, "gate-released") == {LEARN: "FAIL"}
    assert exit_of(build, "gate:released") == 1
    assert "collect:released:2" in build.started


def test_what_is_run_again_uploads_nothing_twice_and_goes_on_where_it_was(play, fakes, tmp_path):
    """The uploading step uploads twice; the agent of a judging step is lost after its upload."""
    tell(fakes, **{NON: {"looks": ["INCONCLUSIVE", "PASS"]}})
    lost, shim = tmp_path / "lost", tmp_path / "shim"
    condition = f"case \"$*\" in *'judge {NON} --look 1'*) [ -e {lost} ] || {{ touch {lost}; kill -9 $(ps -o sid= $$); }};; esac"
    shim.write_text(f'#!/bin/sh\n{sys.executable} "$@"; code=$?\n{condition}\nexit $code\n')
    shim.chmod(0o755)
    build = play(twice=True, platforms={"cpu": {"prepare": [], "python": str(shim)}})
    assert build.state is State.PASSED, "\n".join(build.said)
    assert len(keys(build)) == len(set(keys(build)))
    assert [attempt.exit for attempt in build.step(f"judge:{NON}:1").jobs[0].attempts] == [-1, 10]
    assert outcomes(build)[NON] == "PASS"
    assert build.started.count(f"run:{NON}:101") == 1
