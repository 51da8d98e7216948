"""A third platform by an entry point: numbered devices, shared memory that reaches one device only, and a sleep mode, through the whole loop."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.loop.process import EXAMPLE, events, finished, lines

LINES = len((Path(__file__).parent / "toy.py").read_text().splitlines())


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy as an installed distribution with an entry point, for this process' children."""
    info = tmp_path / "site" / "toy_platform-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vime.platforms]\ntoy = tests.platforms.toy:ToyPlatform\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(info.parent), str(Path(__file__).parents[2])]))


def test_a_platform_is_one_short_file() -> None:
    assert LINES < 80


@pytest.mark.heavy
def test_the_loop_runs_on_it_with_relayed_weights_and_memory_turns(installed: None, tmp_path: Path) -> None:
    run = tmp_path / "run"
    layout = ["parallel.tensor=2", "rollout.tensor_parallel=2", "placement.mode=colocate", "platform=toy", "train.steps=3", "train.warmup_steps=0"]
    finished("train", EXAMPLE, *[part for value in layout for part in ("--set", value)], out=run)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["devices"]["count"] == 4
    assert "sleep" not in manifest["devices"]["missing_capabilities"]
    syncs = events(run, "weight_sync")
    assert [(sync["version"], sync["transport"]) for sync in syncs] == [(version, "ipc") for version in range(4)]
    assert syncs[0]["held"]
    gaps = [line["metrics"]["train/logprob_gap_max"] for line in lines(run / "metrics.jsonl")]
    assert max(gaps) < 1e-4
