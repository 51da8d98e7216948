"""Engines of several worker processes: each receives, and under p2p only what its shard of the model reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.rollout.child import EngineChild, config_of
from tests.weights.test_sync_vllm import gap, sync_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def sharded_engine(dense_model: Path) -> Iterator[EngineChild]:
    child = EngineChild(config_of(dense_model, rollout={"tensor_parallel": 2}, timeout_s=60.0))
    yield child
    child.call("shutdown").result(60, "test")
    child.close()


def test_peer_to_peer_sends_each_worker_only_its_shard_from_the_second_sync_on(sharded_engine: EngineChild, dense_model: Path) -> None:
    config = config_of(dense_model, rollout={"tensor_parallel": 2}, transport="p2p", timeout_s=60.0)
    trainers, sync = sync_of([sharded_engine], config, ranks=2)
    reports = []
    for version in range(3):
        for trainer in trainers:
            trainer.change(70 + version)
        reports.append(sync.push(version))
        assert reports[-1].held_check is not None
        assert reports[-1].held_check.largest_gap < 1e-5
        assert gap(trainers[0], sharded_engine) < 1e-5
    assert reports[1].bytes < 0.52 * reports[0].bytes
    assert reports[2].stages["connect"] < 0.001  # planned once
    (left, right) = sharded_engine.call("layout").result(9, "test")
    assert left["model.layers.0.self_attn.q_proj.weight"] == ((0, 64), (0, 96))
    assert right["model.layers.0.self_attn.q_proj.weight"] == ((64, 128), (0, 96))
    assert left["model.layers.0.self_attn.o_proj.weight"] == ((0, 96), (0, 64))
    assert right["model.layers.0.mlp.down_proj.weight"] == ((0, 96), (96, 192))
    assert (left["model.embed_tokens.weight"], right["model.embed_tokens.weight"]) == (((0, 32), (0, 96)), ((32, 64), (0, 96)))
    assert left["model.norm.weight"] == right["model.norm.weight"] == ((0, 96),)
    sync.close()


@pytest.mark.parametrize("transport", ["ipc", "broadcast"])
def test_every_worker_of_a_sharded_engine_receives(transport: str, sharded_engine: EngineChild, dense_model: Path) -> None:
    (trainer,), sync = sync_of([sharded_engine], config_of(dense_model, rollout={"tensor_parallel": 2}, transport=transport, timeout_s=60.0))
    trainer.change(80)
    assert sync.push(9).held_check.largest_gap < 1e-5
    assert gap(trainer, sharded_engine) < 1e-5
    sync.close()


def test_the_box_of_a_view() -> None:
    from vime.rollout.vllm_compat.worker import ReadRecorder, box_read

    whole = torch.arange(60.0).reshape(3, 4, 5)
    assert box_read(whole, whole) == ((0, 3), (0, 4), (0, 5))
    assert box_read(whole, whole[1]) == ((1, 2), (0, 4), (0, 5))
    assert box_read(whole, whole[:, 2:4]) == ((0, 3), (2, 4), (0, 5))
    assert box_read(whole, whole[2, 1:3, 4]) == ((2, 3), (1, 3), (4, 5))
    assert box_read(whole, whole[:, 1].t()) == ((0, 3), (1, 2), (0, 5))
    assert box_read(whole, whole[:, 1:3].clone()) is None
    target = torch.zeros(4, 5)
    with ReadRecorder(whole) as recorder:
        target.copy_(whole[1])
        target[:2].copy_(whole[2, 2:])
        target.copy_(torch.ones(4, 5))  # the layer is completed in the same call
    assert recorder.box == ((1, 3), (0, 4), (0, 5))
    with ReadRecorder(whole) as untouched:
        target.mul_(2)
    assert untouched.box is None
    with ReadRecorder(whole) as transforming:
        target.copy_(whole[1] * 2)
    assert transforming.box == ((0, 3), (0, 4), (0, 5))  # what it reads cannot be seen: everything
