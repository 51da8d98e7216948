"""What a recipe teaches, read from run directories."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "learning_gain.py"


def run_dir(path: Path, seed: int, before: float | None, after: list[float], planned: int = 40) -> Path:
    """A run scored after every tenth step."""
    path.mkdir()
    (path / "manifest.json").write_text(
        json.dumps({"schema_version": 1, "seed": seed, "planned_steps": planned, "attempts": [{"start": 0.0, "end": 90.0, "reason": "start"}]})
    )
    lines = [{"step": step, "metrics": {"rollout/reward_mean": 0.5}} for step in range(10 * len(after))]
    for index, score in enumerate(after):
        lines[10 * index + 9]["metrics"] = {"rollout/reward_mean": 0.5, "eval/heldout/score": score}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    event = {"event": "eval", "version": 0, "heldout/score": before} if before is not None else {"event": "start"}
    (path / "events.jsonl").write_text(json.dumps(event) + "\n")
    return path


def gain(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=60, cwd=SCRIPT.parents[1])


def test_the_gain_is_from_the_first_weights_to_the_last(tmp_path: Path) -> None:
    runs = [run_dir(tmp_path / f"seed-{seed}", seed, 0.25, [0.3, 0.5, 0.6, last]) for seed, last in ((0, 0.75), (1, 0.875))]
    done = gain(*runs, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert "| seed-0 | 0.250 | 0.500 | 0.750 | +0.500 | 1.5 |" in done.stdout
    assert [g["gain"] for g in json.loads((tmp_path / "out.json").read_text())] == [0.5, 0.625]


def test_a_run_that_learns_too_little_is_named(tmp_path: Path) -> None:
    done = gain(run_dir(tmp_path / "seed-3", 3, 0.5, [0.5, 0.5, 0.7, 0.75]))
    assert done.returncode == 1
    assert "seed-3 gains +0.250, less than 0.3" in done.stderr


@pytest.mark.parametrize(
    ("before", "after", "planned", "words"),
    [
        (None, [0.9] * 4, 40, "no score of the first weights"),
        (0.1, [0.9] * 3, 40, "last at step 30, 40 steps are planned"),
    ],
    ids=["no start", "unfinished"],
)
def test_what_has_no_gain_is_refused(tmp_path: Path, before: float | None, after: list[float], planned: int, words: str) -> None:
    done = gain(run_dir(tmp_path / "seed-0", 0, before, after, planned))
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_score_that_is_no_number_is_no_gain(tmp_path: Path) -> None:
    assert gain(run_dir(tmp_path / "seed-0", 0, 0.1, [0.5, 0.5, 0.5, float("nan")])).returncode == 1
