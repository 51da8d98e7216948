"""Checkpoints: a resumed run is the uninterrupted one bit for bit, and a save that fails leaves everything as it was."""

from __future__ import annotations

import dataclasses
import json
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.ranks import configured, on_ranks, one_rank, random_batch, twin
from vime.config.tree import CheckpointConfig
from vime.errors import RunError, UserError
from vime.training import checkpoint

STEPS = 6


def weights(actor: Any) -> dict[str, torch.Tensor]:
    return {shard.hf_name: shard.tensor.clone() for shard in actor.shards()}


def steps(actor: Any, first: int, stop: int) -> list[Any]:
    return [actor.train(random_batch(seed=step), step) for step in range(first, stop)]


def equal(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def complete(root: Path, number: int) -> Path:
    path = root / f"step-{number:06d}"
    path.mkdir(parents=True)
    (path / checkpoint.META).write_text(json.dumps({"format": 1}))
    return path


def test_latest_counts_only_whole_checkpoints(tmp_path):
    assert checkpoint.latest(tmp_path) is None
    complete(tmp_path, 9)
    ten = complete(tmp_path, 10)
    (tmp_path / "step-000011").mkdir()  # no vime.json: torn
    (tmp_path / ".step-000012.partial").mkdir()
    assert checkpoint.latest(tmp_path) == ten


def test_prune_keeps_the_last_and_sweeps_leftovers(tmp_path):
    for number in (1, 2, 10, 20):
        complete(tmp_path, number)
    (tmp_path / ".step-000012.partial").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000010", "step-000020"]


def test_a_save_killed_between_its_two_renames_leaves_the_earlier_one(tmp_path):
    complete(tmp_path, 1)
    complete(tmp_path, 2).rename(tmp_path / "step-000002.old")
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000002"
    (tmp_path / "step-000002").rename(tmp_path / "step-000002.old")
    complete(tmp_path, 2)  # the second rename was done: the one aside is the old one
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001", "step-000002"]


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match="no complete checkpoint there"):
        checkpoint.read_meta(tmp_path)
    (tmp_path / checkpoint.META).write_text('{"format": 99}')
    with pytest.raises(UserError, match="format 99, this vime reads 2"):
        checkpoint.read_meta(tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize(("dtype", "distributed"), [("float32", True), ("float32", False), ("bfloat16", True), ("bfloat16", False)])
def test_resume_is_bit_exact(tmp_path, dtype, distributed):
    config = configured(twin(tmp_path / "twin"), model={"dtype": dtype}, train={"distributed_optimizer": distributed, "lr": 1e-2}, algo={"kl_coef": 0.01})
    with one_rank(config) as actor:
        whole = steps(actor, 0, STEPS)
        expected = weights(actor)
    with one_rank(config) as actor:
        steps(actor, 0, 3)
        actor.save(str(tmp_path / "step-3"), {"step": 3, "source": {"taken": 12}})
    with one_rank(config) as actor:
        assert actor.load(str(tmp_path / "step-3")) == {"step": 3, "source": {"taken": 12}}
        again = steps(actor, 3, STEPS)
        counts = {float(state["step"]) for part in actor.trained.optimizer.chained_optimizers for state in part.optimizer.state.values()}
        assert counts == {float(STEPS)}, "one Adam step an update, for every parameter"
        assert equal(weights(actor), expected)
    assert again == whole[3:]


@pytest.mark.heavy
def test_a_checkpoint_before_the_first_step_resumes_too(tmp_path):
    config = configured(twin(tmp_path / "twin"))
    with one_rank(config) as actor:
        actor.save(str(tmp_path / "step-0"), {})
        whole = steps(actor, 0, 2)
    with one_rank(config) as actor:
        steps(actor, 0, 1)  # loading must undo it
        actor.load(str(tmp_path / "step-0"))
        assert steps(actor, 0, 2) == whole


@pytest.mark.heavy
def test_torch_dist_load_starts_from_the_weights_alone(tmp_path):
    path = twin(tmp_path / "twin")
    with one_rank(configured(path)) as actor:
        steps(actor, 0, 2)
        actor.save(str(tmp_path / "step-2"), {})
        expected = weights(actor)
    start = {"random_init_seed": None, "load": "torch-dist", "torch_dist_path": str(tmp_path / "step-2")}
    with one_rank(configured(path, model=start, algo={"kl_coef": 0.1})) as actor:
        assert equal(weights(actor), expected)
        (metrics,) = steps(actor, 0, 1)
        assert abs(metrics["train/kl_ref"]) < 1e-9  # the reference started there as well
        counts = {float(state["step"]) for part in actor.trained.optimizer.chained_optimizers for state in part.optimizer.state.values()}
        assert counts == {1.0}


@pytest.mark.heavy
def test_another_model_is_refused(tmp_path):
    with one_rank(configured(twin(tmp_path / "one"))) as actor:
        actor.save(str(tmp_path / "step-0"), {})
    with one_rank(configured(twin(tmp_path / "two", hidden_size=96))) as actor:
        with pytest.raises(UserError, match="holds another model"):
            actor.load(str(tmp_path / "step-0"))
        with pytest.raises(UserError, match="no such checkpoint directory"):
            actor.load(str(tmp_path / "absent"))


@pytest.mark.heavy
def test_old_ones_are_pruned_and_the_same_step_can_be_saved_again(tmp_path):
    with one_rank(configured(twin(tmp_path / "twin"))) as actor:  # checkpoint.keep is 2
        for number in (1, 2, 3, 3):
            actor.save(str(tmp_path / "kept" / f"step-{number:06d}"), {"step": number})
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-000002", "step-000003"]


def slowed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Checkpoint files are not written before the event is set."""
    from vime.training import checkpoint_writer

    gate, write = threading.Event(), checkpoint_writer._write_bucket

    def waits(*args: Any) -> Any:
        assert gate.wait(60)
        return write(*args)

    monkeypatch.setattr(checkpoint_writer, "_write_bucket", waits)
    return gate


@pytest.mark.heavy
@pytest.mark.parametrize(("dtype", "distributed"), [("float32", False), ("bfloat16", True)])
def test_an_async_save_holds_the_state_of_its_moment_and_does_not_block_the_step(tmp_path, monkeypatch, dtype, distributed):
    background = dataclasses.replace(CheckpointConfig(), async_save=True)
    config = configured(twin(tmp_path / "twin"), model={"dtype": dtype}, train={"distributed_optimizer": distributed, "lr": 1e-2}, checkpoint=background)
    path, gate = tmp_path / "step-2", slowed(monkeypatch)
    with one_rank(config) as actor:
        steps(actor, 0, 2)
        actor.save(str(path), {"step": 2})
        assert not path.exists()
        whole = steps(actor, 2, 4)  # while the writer waits
        assert actor.finish_save(wait=False) is False
        assert not checkpoint.is_complete(path)
        gate.set()
        assert actor.finish_save(wait=True) and checkpoint.is_complete(path)
        expected = weights(actor)
    with one_rank(config) as actor:
        assert actor.load(str(path)) == {"step": 2}
        assert steps(actor, 2, 4) == whole and equal(weights(actor), expected)


@pytest.mark.heavy
def test_an_async_save_ends_before_the_next_and_before_the_trainer_does(tmp_path, monkeypatch):
    background = dataclasses.replace(CheckpointConfig(), async_save=True, keep=5)
    with one_rank(configured(twin(tmp_path / "twin"), checkpoint=background)) as actor:
        gate = slowed(monkeypatch)
        threading.Timer(0.3, gate.set).start()
        for number in (1, 2):
            actor.save(str(tmp_path / "kept" / f"step-{number:06d}"), {"step": number})
        assert checkpoint.latest(tmp_path / "kept").name == "step-000001"
    assert checkpoint.latest(tmp_path / "kept").name == "step-000002"  # `stop` waited for it


@pytest.mark.heavy
def test_a_crash_in_the_writer_is_told_and_never_taken_for_a_checkpoint(tmp_path, monkeypatch):
    from vime.training import checkpoint_writer

    background = dataclasses.replace(CheckpointConfig(), async_save=True)
    with one_rank(configured(twin(tmp_path / "twin"), checkpoint=background)) as actor:
        actor.save(str(tmp_path / "kept" / "step-1"), {"step": 1})
        actor.finish_save(wait=True)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_writer, "_write_bucket", lambda *args: 1 / 0)
            actor.save(str(tmp_path / "kept" / "step-2"), {"step": 2})
            steps(actor, 0, 1)
            with pytest.raises(RunError, match=r"checkpoint: .*step-2 could not be written \(division by zero\); earlier checkpoints are untouched"):
                actor.finish_save(wait=True)
        assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-1"]
        actor.save(str(tmp_path / "kept" / "step-3"), {"step": 3})  # the actor goes on
    assert checkpoint.latest(tmp_path / "kept").name == "step-3"


KILLED = """
import os, signal, sys, threading
from pathlib import Path
from tests.training.ranks import configured, one_rank, random_batch
from vime.config.tree import CheckpointConfig
from vime.training import checkpoint_writer

with one_rank(configured(sys.argv[1], checkpoint=CheckpointConfig(async_save=True))) as actor:
    actor.save(sys.argv[2] + "/step-1", {"step": 1})
    actor.finish_save(wait=True)
    write = checkpoint_writer._write_bucket
    def killed(*args):
        write(*args)
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoint_writer._write_bucket = killed
    actor.save(sys.argv[2] + "/step-2", {"step": 2})
    actor.finish_save(wait=True)
"""


@pytest.mark.heavy
def test_a_process_killed_while_it_writes_leaves_the_last_good_checkpoint(tmp_path):
    config = twin(tmp_path / "twin")
    result = subprocess.run([sys.executable, "-c", KILLED, config, str(tmp_path / "kept")], timeout=120)
    assert result.returncode == -signal.SIGKILL
    assert checkpoint.latest(tmp_path / "kept").name == "step-1"
    with one_rank(configured(config)) as actor:
        assert actor.load(str(tmp_path / "kept" / "step-1")) == {"step": 1}
        actor.save(str(tmp_path / "kept" / "step-2"), {"step": 2})  # over the torn one's leftovers
    assert checkpoint.latest(tmp_path / "kept").name == "step-2"
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["step-1", "step-2"]


@pytest.mark.heavy
@pytest.mark.parametrize("limit", [500, 600_000])  # bytes a file may have: the first small file fails; only the tensors' file fails
def test_a_full_disk_gives_one_error_and_leaves_the_earlier_checkpoint(tmp_path, limit):
    config = configured(twin(tmp_path / "twin"))
    with one_rank(config) as actor:
        steps(actor, 0, 1)
        actor.save(str(tmp_path / "step-1"), {"step": 1})
        expected = weights(actor)
        steps(actor, 1, 2)
        limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(
                RunError, match=r"checkpoint: .*step-2 could not be written \(.*File too large.*\); earlier checkpoints are untouched"
            ) as caught:
                actor.save(str(tmp_path / "step-2"), {"step": 2})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert caught.value.stage == "checkpoint" and "\n" not in str(caught.value)
        actor.save(str(tmp_path / "step-3"), {"step": 3})  # the actor goes on
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-3", "twin"]
    with one_rank(config) as actor:
        actor.load(str(tmp_path / "step-1"))
        assert equal(weights(actor), expected)


def rank_main(rank: int, world: int, port: int, path: str, layout: dict[str, int], directory: Path) -> Any:
    from vime.training.actor import TrainerActor

    config = configured(path, parallel=layout, train={"lr": 1e-2})
    out = []
    for index, resumed in enumerate((False, True)):
        actor = TrainerActor()
        actor.start(config, rank, world, "127.0.0.1", port + index)
        if resumed:
            out.append(actor.load(str(directory / "step-2")))
        else:
            steps(actor, 0, 2)
            actor.save(str(directory / "step-2"), {"step": 2})
        steps(actor, 2, 4)
        out.append(weights(actor))
        actor.stop()
    actor = TrainerActor()
    actor.start(config, rank, world, "127.0.0.1", port + 2)
    if rank == world - 1:  # this rank's disk is full
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        actor.save(str(directory / "step-9"), {})
        told = "saved"
    except RunError as error:
        told = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    actor.stop()
    whole, extra, again = out
    return {"equal": equal(whole, again), "extra": extra, "told": told}


@pytest.mark.heavy
@pytest.mark.timeout(150)
@pytest.mark.parametrize("layout", [{"data": 2}, {"tensor": 2}, {"pipeline": 2}], ids=["dp2", "tp2", "pp2"])
def test_two_ranks_resume_bit_exact_and_fail_together(tmp_path, layout):
    path = twin(tmp_path / "twin", vocab_size=67)
    results = on_ranks(2, rank_main, path, layout, tmp_path, directory=tmp_path / "results")
    for result in results:
        assert result["equal"] and result["extra"] == {"step": 2}
        assert "step-9 could not be written" in result["told"]
    assert not list(tmp_path.glob("*step-9*"))
    with one_rank(configured(path)) as actor:  # another layout reads it as well
        assert actor.load(str(tmp_path / "step-2")) == {"step": 2}


def test_what_all_parameters_share_is_told_from_what_is_sharded():
    from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject

    sharded = ShardedObject("key", 1, (1,), (0,))
    state = {
        "optimizer": {"param_groups": [{"lr": 0.1, "params": LocalNonpersistentObject([0])}], "state": {0: {"m": sharded}, "common_step": 3}},
        "x": sharded,
    }
    assert checkpoint._shared(state) == {"optimizer": {"param_groups": [{"lr": 0.1}], "state": {"common_step": 3}}}
