"""What may differ when a run is resumed: its layout, and nothing that is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vime.config.resolve import Resolved, from_dict
from vime.errors import UserError
from vime.loop.start import check_unchanged
from vime.tracking.run_dir import RunDir


def given(**changes: Any) -> Resolved:
    return from_dict({"model": {"path": "/m"}, "data": {"task": "spell_backward"}, **changes})


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "run", given(), {"seed": 0, "planned_steps": 3})


def test_the_same_configuration_elsewhere_is_the_run(run: RunDir) -> None:
    assert check_unchanged(run, given()) == []


def test_another_layout_is_told(run: RunDir) -> None:
    other = given(parallel={"tensor": 2, "data": 2}, rollout={"engines": 2}, train={"max_tokens_per_microbatch": 8192})
    assert sorted(check_unchanged(run, other)) == [
        "parallel.data 1 → 2",
        "parallel.tensor 1 → 2",
        "rollout.engines 1 → 2",
        "train.max_tokens_per_microbatch 4096 → 8192",
    ]


def test_anything_else_is_refused_and_named(run: RunDir) -> None:
    with pytest.raises(UserError, match=r"is not the run's .*: train\.lr 1e-06 → 0\.1: resume without changes"):
        check_unchanged(run, given(parallel={"tensor": 2}, train={"lr": 0.1}))
