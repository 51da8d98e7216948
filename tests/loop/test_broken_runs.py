"""Runs that break: processes that die, ports and disks that refuse. One message, exit 3, nothing left running, earlier checkpoints whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.loop.faulty import Fault
from tests.loop.process import EXAMPLE, Vime, attempts, checkpoints, curve, events, finished, lines, settings

pytestmark = pytest.mark.heavy


def broken(out: Path, *arguments: str, code: int = 3, **fault: Any) -> Vime:
    """A run that must end by itself, in order, with one message."""
    planted = Fault(**{"flag": str(out.with_suffix(".flag")), **fault}) if fault else None
    run = finished("train", EXAMPLE, *arguments, out=out, code=code, fault=planted)
    assert planted is None or Path(planted.flag).exists()
    (error,) = events(out, "error")
    assert run.message == error["text"]
    (attempt,) = attempts(out)
    assert attempt["end"] is not None
    assert attempt["reason"] == f"start; failed: {run.message}"
    return run


def test_an_engine_option_that_vllm_rejects(tmp_path: Path):
    run = broken(tmp_path / "run", *settings(vllm__max_num_batched_tokens=1, vllm__max_num_seqs=4))
    assert run.message.startswith("engine start: engine 0: vLLM could not start on ")
    assert "max_num_batched_tokens" in run.message


def test_an_engine_that_is_killed_at_its_start(tmp_path: Path):
    run = broken(tmp_path / "run", *settings(), at="engine.start", do="kill")
    assert run.message.startswith("start: engine 0 died in start: its process ")
    assert "was killed or crashed" in run.message


def test_an_engine_that_dies_between_begin_and_commit(tmp_path: Path):
    """And the checkpoint made before it: the run goes on from it, and its curve is that of a run nothing happened to."""
    out, length = tmp_path / "run", settings(train__steps=2, checkpoint__every=1)
    run = broken(out, *length, at="engine.receive", do="kill", call=2)
    assert run.message.startswith("weight sync: engine 0 died in receive: ")
    assert [sync["version"] for sync in events(out, "weight_sync")] == [0, 1]
    assert checkpoints(out) == ["step-000001"]
    finished("train", "--resume", out)
    assert [attempt["reason"] for attempt in attempts(out)][1:] == ["resume from step-000001; completed"]
    assert sorted(curve(out)) == [0, 1]
    assert checkpoints(out) == ["step-000001", "step-000002"]


def test_a_trainer_rank_that_dies_in_a_step(tmp_path: Path):
    run = broken(tmp_path / "run", *settings(parallel__data=2), at="trainer.train", do="kill", call=1, rank=1)
    assert run.message.startswith("train: trainer 1 died in train: ")
    assert sorted(curve(tmp_path / "run")) == [0]


def test_a_port_in_use(tmp_path: Path):
    run = broken(tmp_path / "run", *settings(), at="cluster.free_port", do="take-port", flag=os.devnull)
    assert "trainer start: " in run.message
    assert "127.0.0.1:" in run.message
    assert "in use" in run.message


def test_a_full_disk_under_a_checkpoint(tmp_path: Path):
    out = tmp_path / "run"
    run = broken(out, *settings(checkpoint__every=1), at="trainer.save", do="limit", call=1, limit=400_000)
    assert run.message.startswith(f"checkpoint: {out / 'checkpoints' / 'step-000002'} could not be written (")
    assert "File too large" in run.message
    assert "earlier checkpoints are untouched" in run.message
    assert checkpoints(out) == ["step-000001"]
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-000001"]
    finished("train", "--resume", out)
    assert attempts(out)[-1]["reason"] == "resume from step-000001; completed"


def test_a_full_disk_under_the_metrics(tmp_path: Path):
    out = tmp_path / "run"
    fault = Fault(at="driver._step", do="limit", call=1, limit=2000, flag=str(tmp_path / "flag"))
    run = finished("train", EXAMPLE, *settings(checkpoint__every=1), out=out, code=3, fault=fault)
    assert run.message.startswith(f"run directory: cannot write {out / 'metrics.jsonl'}: ")
    assert f"free some space, then --resume {out}" in run.message
    assert (out / "metrics.jsonl").read_text().endswith("}\n")
    assert checkpoints(out) == ["step-000001"]
    finished("train", "--resume", out)
    assert [record["step"] for record in lines(out / "metrics.jsonl")] == [0, 1, 2]


def test_a_reward_that_always_raises(tmp_path: Path):
    run = broken(tmp_path / "run", *settings(reward__name="tests.rewards.user_rewards:always_raises"))
    assert run.message.startswith("reward: reward 'tests.rewards.user_rewards:always_raises' could not score any of 16 answers; the first error: ")
