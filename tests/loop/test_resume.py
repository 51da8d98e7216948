"""A run that was killed goes on as if nothing had happened: the same prompts, the same numbers bit for bit. A run that is not the same is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.loop.command import Command, command, overrides
from tests.loop.faulty import Fault
from tests.loop.process import EXAMPLE, Vime, attempts, checkpoints, curve, events, finished, settings

__all__ = ["command"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(500)]

STEPS = 5
WORDS = ["cat", "dog", "bird", "mouse", "horse", "cow", "fox", "bear", "wolf", "lion", "frog", "goat", "duck", "hen", "owl", "ant", "bee", "fly", "eel", "cod"]
GONE_S = 15.0  # after a SIGKILL of the driver


@dataclass(frozen=True)
class Reference:
    """A run that nothing happened to, and the arguments that make it again."""

    out: Path
    prompts: Path
    arguments: list[str]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("reference")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{word}=", "label": word[::-1]}) + "\n" for word in WORDS))
    arguments = settings(train__steps=STEPS, checkpoint__every=2, checkpoint__save_last=True, data__task=None, data__path=str(prompts))
    finished("train", EXAMPLE, *arguments, out=folder / "run")
    assert sorted(curve(folder / "run")) == list(range(STEPS))
    return Reference(folder / "run", prompts, arguments)


def killed(reference: Reference, out: Path, **fault: Any) -> None:
    """The reference's run until the driver is killed at the fault's point; asserts that its processes go with it."""
    planted = Fault(**{"do": "kill-driver", "flag": str(out.with_suffix(".flag")), **fault})
    with Vime("train", EXAMPLE, *reference.arguments, out=out, fault=planted) as run:
        assert run.wait() == -9
        assert Path(planted.flag).exists()
        assert [left for left in run.gone(GONE_S) if not left.startswith(str(run.scratch))] == []
    assert attempts(out)[-1]["end"] is None


def resumed(reference: Reference, out: Path, point: str) -> None:
    finished("train", "--resume", out)
    assert [attempt["reason"] for attempt in attempts(out)] == ["start", f"resume from {point}; completed"]
    assert curve(out) == curve(reference.out)
    assert checkpoints(out) == checkpoints(reference.out)


@pytest.mark.slow
def test_killed_while_a_checkpoint_is_written(reference: Reference, tmp_path: Path):
    killed(reference, tmp_path / "run", at="checkpoint._publish", call=1)
    assert checkpoints(tmp_path / "run") == ["step-000002"]
    resumed(reference, tmp_path / "run", "step-000002")


def test_killed_in_a_rollout_and_resumed_with_the_same_data_only(reference: Reference, tmp_path: Path, command: Command):
    out = tmp_path / "run"
    killed(reference, out, at="engine.generate", call=3)
    prompts = reference.prompts.read_text()
    reference.prompts.write_text(prompts.replace("cat=", "rat="))
    done = command("train", "--resume", out)
    reference.prompts.write_text(prompts)
    assert done.code == 2
    assert done.message.startswith("the data set changed since the run began: it had 20 prompts with fingerprint ")
    assert len(attempts(out)) == 1
    resumed(reference, out, "step-000002")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "call", "point"),
    [
        ("engine.start", 0, "the start: no complete checkpoint"),
        ("trainer.train", 0, "the start: no complete checkpoint"),
        ("engine.receive", 2, "the start: no complete checkpoint"),  # the sync after step 1
        ("checkpoint.begin", 0, "the start: no complete checkpoint"),
        ("checkpoint.prune", 0, "step-000002"),  # renamed, not yet tidied
        ("trainer.train", 3, "step-000002"),
        ("engine.commit", 4, "step-000002"),
        ("checkpoint._publish", 2, "step-000004"),  # the last step's
    ],
)
def test_killed_anywhere(reference: Reference, tmp_path: Path, at: str, call: int, point: str):
    killed(reference, tmp_path / "run", at=at, call=call)
    resumed(reference, tmp_path / "run", point)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "call"), [("engine.generate", 2), ("engine.receive", 2), ("engine.commit", 1), ("engine.begin", 3)])
def test_an_engine_killed_in_mid_run_is_replaced_and_changes_nothing(reference: Reference, tmp_path: Path, at: str, call: int):
    fault = Fault(at=at, call=call, do="kill", flag=str(tmp_path / "flag"))
    out = tmp_path / "run"
    finished("train", EXAMPLE, *reference.arguments, *overrides(rollout__max_engine_restarts=1), out=out, fault=fault)
    (retry,) = events(out, "retry")
    assert retry["worker"] == "engine 0"
    assert retry["restarts_left"] == 0
    assert curve(out) == curve(reference.out)


def snapshot(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_a_finished_run_is_left_as_it_is(reference: Reference, command: Command):
    before = snapshot(reference.out)
    done = command("train", "--resume", reference.out)
    assert done.code == 0
    assert "is finished: all 5 steps are done" in done.err
    assert snapshot(reference.out) == before


def test_a_changed_configuration_is_refused_with_the_keys(reference: Reference, command: Command, tmp_path: Path):
    before = snapshot(reference.out)
    done = command("train", "--resume", reference.out, "--set", "train.lr=1e-3")
    assert done.code == 2
    assert "train.lr 0.0005 → 0.001: resume without changes" in done.message
    done = command("train", EXAMPLE, "--resume", reference.out)
    assert done.code == 2
    assert "train.steps 5 → 100" in done.message
    assert snapshot(reference.out) == before
    edited = shutil.copytree(reference.out, tmp_path / "run")
    (edited / "config.yaml").write_text((edited / "config.yaml").read_text().replace("lr: 0.0005", "lr: 0.05"))
    done = command("train", "--resume", edited)
    assert done.code == 2
    assert "its config.yaml was edited" in done.message


@pytest.mark.slow
def test_killed_beside_an_async_checkpoint(reference: Reference, tmp_path: Path):
    """The files of step 2 are written while step 3 is made; the run is killed before the checkpoint is published."""
    arguments = [*reference.arguments, *overrides(checkpoint__async_save="true")]
    killed(Reference(reference.out, reference.prompts, arguments), tmp_path / "run", at="checkpoint._publish", call=0)
    assert checkpoints(tmp_path / "run") == []
    resumed(reference, tmp_path / "run", "the start: no complete checkpoint")
    saved = events(tmp_path / "run", "checkpoint")
    assert [event["steps_done"] for event in saved] == [2, 4, 5] and all(event["blocked_s"] <= event["seconds"] for event in saved)


@pytest.mark.slow
def test_going_on_in_another_layout(reference: Reference, tmp_path: Path):
    out = tmp_path / "run"
    killed(reference, out, at="trainer.train", call=3)
    finished("train", "--resume", out, "--set", "parallel.data=2")
    assert [attempt["reason"] for attempt in attempts(out)] == ["start", "resume from step-000002, with parallel.data 1 → 2; completed"]
    expected = curve(reference.out)
    for step, metrics in curve(out).items():
        assert metrics.keys() == expected[step].keys()
        for key, value in metrics.items():
            assert value == pytest.approx(expected[step][key], rel=1e-3, abs=1e-4), f"{key} of step {step}"
