"""Ctrl-C, SIGTERM and SIGKILL: everything of the run is gone within seconds, and the directory says how it ended."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.loop.faulty import Fault
from tests.loop.process import EXAMPLE, Vime, attempts, checkpoints, events, finished, settings

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
LIMIT_S = 10.0

# Where a worker does not come back, so that nothing but the signal ends the wait.
START_UP = ("engine.start", 0)
ROLLOUT = ("engine.generate", 1)
TRAINING = ("trainer.train", 1)
CHECKPOINT = ("checkpoint._publish", 1)


def interrupt(out: Path, point: tuple[str, int], number: signal.Signals, *, group: bool) -> None:
    """Signal a run that is at `point`; asserts that it ended in order and in time."""
    fault = Fault(at=point[0], call=point[1], do="hang", flag=str(out.with_suffix(".flag")))
    with Vime("train", EXAMPLE, *settings(checkpoint__every=1), out=out, fault=fault) as run:
        run.until(Path(fault.flag).exists, f"the run to reach {point[0]}")
        begin = time.monotonic()
        run.signal(number, group=group)
        assert run.wait(LIMIT_S) == 128 + number
        assert run.gone(LIMIT_S - (time.monotonic() - begin)) == []
        assert run.message == f"interrupted by {number.name}"
    (attempt,) = attempts(out)
    assert attempt["reason"] == f"start; interrupted by {number.name}"
    assert attempt["end"] is not None
    assert events(out, "error") == []


@pytest.mark.parametrize(
    ("point", "number", "group"),
    [
        (START_UP, signal.SIGINT, True),
        (ROLLOUT, signal.SIGINT, False),
        (TRAINING, signal.SIGTERM, False),
        pytest.param(START_UP, signal.SIGINT, False, marks=pytest.mark.slow),
        pytest.param(START_UP, signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(ROLLOUT, signal.SIGINT, True, marks=pytest.mark.slow),
        pytest.param(TRAINING, signal.SIGINT, False, marks=pytest.mark.slow),
        pytest.param(TRAINING, signal.SIGINT, True, marks=pytest.mark.slow),
        pytest.param(CHECKPOINT, signal.SIGINT, False, marks=pytest.mark.slow),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value.name if isinstance(value, signal.Signals) else "group" if value else "driver",
)
def test_everything_ends_in_time(tmp_path: Path, point: tuple[str, int], number: signal.Signals, group: bool):
    interrupt(tmp_path / "run", point, number, group=group)


def test_a_run_interrupted_in_a_checkpoint_goes_on_from_the_one_before(tmp_path: Path):
    out = tmp_path / "run"
    interrupt(out, CHECKPOINT, signal.SIGINT, group=True)
    assert checkpoints(out) == ["step-000001"]
    finished("train", "--resume", out)
    assert [attempt["reason"] for attempt in attempts(out)][1:] == ["resume from step-000001; completed"]
    assert [path.name for path in sorted((out / "checkpoints").iterdir())] == ["step-000002", "step-000003"]  # the two newest; nothing half-written


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
def test_a_second_ctrl_c_changes_nothing(tmp_path: Path, seconds: float):
    """At whatever moment it comes, also while the first one is being dealt with."""
    with Vime("train", EXAMPLE, *settings(train__steps=500), out=tmp_path / "run") as run:
        time.sleep(seconds)
        begin = time.monotonic()
        for _ in range(3):
            if run.process.poll() is None:
                run.signal(signal.SIGINT, group=True)
                time.sleep(0.3)
        assert run.wait(LIMIT_S) == 130
        assert run.gone(LIMIT_S - (time.monotonic() - begin)) == []
        assert "Traceback" not in run.output
        assert run.output.count("vime: interrupted by SIGINT") == 1
    assert not (tmp_path / "run" / "manifest.json").exists() or attempts(tmp_path / "run")[-1]["end"] is not None


@pytest.mark.slow
def test_sft_is_interrupted_the_same_way(tmp_path: Path):
    fault = Fault(at="trainer.sft_step", call=1, do="hang", flag=str(tmp_path / "flag"))
    with Vime("sft", EXAMPLE, "--set", "train.steps=20", out=tmp_path / "run", fault=fault) as run:
        run.until(Path(fault.flag).exists, "the second step")
        run.signal(signal.SIGINT)
        assert run.wait(LIMIT_S) == 130
        assert run.gone(2) == []
    assert attempts(tmp_path / "run")[0]["reason"] == "start; interrupted by SIGINT"
    assert not (tmp_path / "run" / "hf").exists()
