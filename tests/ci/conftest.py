"""Builds to play with: settings whose cells are stand-ins, verdicts made beforehand, a local build of any pipeline."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.local.executor import Build, Options
from ci.settings import SETTINGS
from matrix.outcome import Outcome

FAKE = Path(__file__).with_name("fake_cell.py")


@pytest.fixture
def local(tmp_path: Path) -> Callable[..., Build]:
    """Run steps in a local build; returns it, ended. Options by name."""

    def run(*steps: Any, **options: Any) -> Build:
        said: list[str] = []
        build = Build(Options(tmp_path / "build", tmp_path, **({"grace_s": 2.0, "say": said.append} | options)))
        build.said = said  # type: ignore[attr-defined]
        build.run({"steps": list(steps)})
        return build

    return run


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    """FOLDER of fake_cell.py, with a verdict of each outcome."""
    folder = tmp_path / "fakes"
    (folder / "verdicts").mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    for outcome in Outcome:
        (folder / "verdicts" / f"{outcome}.json").write_text(verdict(outcome))
    return folder


def verdict(outcome: Outcome, **values: Any) -> str:
    from matrix.rule import JudgeRule, Windows
    from reports.verdict import Declared, Verdict

    rule = JudgeRule(metric="rollout/reward_mean", evidence="exactness", sided="two", planned_steps=2, windows=Windows(first=1, last=1))
    told = {"evidence": "convergence", "headline": f"it is {outcome}", "reasons": [f"it is {outcome}"]} | values
    return Verdict(outcome=outcome, rule=rule, candidates=[], declared=Declared(cell="x"), **told).model_dump_json()


@pytest.fixture
def settings_file(tmp_path: Path, fakes: Path) -> Path:
    """ci/settings.yaml with stand-ins for cells and no checks."""
    return write_settings(tmp_path / "settings.yaml", fakes)


def write_settings(path: Path, fakes: Path, **changes: Any) -> Path:
    import yaml

    told = yaml.safe_load(SETTINGS.read_text())
    fake = f"{sys.executable} -S -E {FAKE} {fakes}"
    told["platforms"] = {name: {"prepare": [], "python": sys.executable} for name in ("cpu", "cuda", "npu")}
    told["commands"]["cell"] = f"{fake} run {{cell}} {{seed}} {{results}}"
    told["commands"]["verdict"] = f"{fake} judge {{cell}} {{seeds}} {{results}}"
    told["commands"]["report"] = "true"
    told["checks"] = [{"key": "lint", "label": "lint", "commands": ["true"], "minutes": 1}]
    told["policy"] = str(SETTINGS.with_name("policy.yaml"))
    path.write_text(yaml.safe_dump(told | changes))
    return path


def tell(fakes: Path, **cells: Any) -> None:
    (fakes / "plan.json").write_text(json.dumps(cells))
