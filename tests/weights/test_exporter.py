"""Shards of a real model: views of its parameters, owned once, whole when gathered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.ranks import configured, on_ranks, one_rank, twin
from vime.weights.exporter import gather_plan, shards, whole_tensors

pytestmark = pytest.mark.heavy


def test_shards_follow_the_parameters(tmp_path):
    with one_rank(configured(twin(tmp_path / "twin"))) as actor:
        before = actor.shards()
        assert {shard.hf_name for shard in before} == set(actor.trained.table.shapes)
        assert all(tuple(shard.tensor.shape) == shard.global_shape and shard.owner_rank == 0 for shard in before)
        with torch.no_grad():
            for parameter in actor.trained.model.parameters():
                parameter.fill_(7.0)
        assert all((shard.tensor == 7.0).all() for shard in actor.shards())


def test_wrapped_and_bare_models_give_the_same(tmp_path):
    with one_rank(configured(twin(tmp_path / "twin"))) as actor:
        trained = actor.trained
        bare, wrapped = (list(shards([model], trained.table, trained.layout)) for model in (trained.model, trained.ddp))
        assert [shard.hf_name for shard in bare] == [shard.hf_name for shard in wrapped]
        assert all(torch.equal(one.tensor, other.tensor) for one, other in zip(bare, wrapped, strict=True))


def rank_main(rank: int, world: int, port: int, path: str, layout: dict[str, int], destination: int) -> Any:
    from vime.training.actor import TrainerActor

    actor = TrainerActor()
    actor.start(configured(path, parallel=layout), rank, world, "127.0.0.1", port)
    local, order = actor.shards(), list(actor.trained.table.shapes)
    plan = gather_plan(local, order)
    whole = dict(whole_tensors(local, plan, destination))
    mine = sorted(shard.hf_name for shard in local if shard.owner_rank == rank)
    actor.stop()
    return {"whole": {name: tensor.numpy() for name, tensor in whole.items() if tensor is not None}, "names": list(whole), "owned": mine}


@pytest.mark.parametrize("layout", [{"tensor": 2}, {"pipeline": 2}, {"data": 2}], ids=["tp2", "pp2", "dp2"])
def test_whole_tensors_of_two_ranks_are_those_of_one(tmp_path: Path, layout):
    path = twin(tmp_path / "twin", vocab_size=67, tie_word_embeddings=True)
    with one_rank(configured(path)) as actor:
        expected = {shard.hf_name: shard.tensor.clone() for shard in actor.shards()}
    results = on_ranks(2, rank_main, path, layout, 1, directory=tmp_path / "results")
    assert results[0]["whole"] == {} and results[0]["names"] == results[1]["names"] and set(results[0]["names"]) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(torch.from_numpy(results[1]["whole"][name]), tensor), name
    owned = [name for result in results for name in result["owned"]]
    copies = {name: owned.count(name) for name in expected}
    assert max(copies.values()) == (2 if "tensor" in layout else 1) and min(copies.values()) == 1
