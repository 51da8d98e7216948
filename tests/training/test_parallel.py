"""Two trainer ranks in processes of their own: every layout gives what one process gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.ranks import configured, on_ranks, one_rank, random_batch, twin

pytestmark = pytest.mark.heavy

VOCABULARY = 67  # odd: two tensor ranks pad it to 68
SGD = {"optimizer": {"optimizer": "sgd", "sgd_momentum": 0.0}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"data": 2},
    "tp2": {"tensor": 2},
    "tp2sp": {"tensor": 2, "sequence_parallel": True},
    "pp2": {"pipeline": 2},
    "cp2": {"context": 2},
}
UNEVEN = {"model": {"num_layers_in_first_pipeline_stage": 2}}  # of three layers


def run_config(path: str, layout: dict[str, Any], exact: bool, megatron: dict[str, Any]) -> Any:
    """`exact`: SGD, whose update is the gradient; else Adam over a distributed optimizer, two updates a rollout, a reference."""
    train: dict[str, Any] = {"max_tokens_per_microbatch": 60}
    algo: dict[str, Any] = {}
    if exact:
        train |= {"lr": 0.5, "clip_grad": 0.0, "distributed_optimizer": False}
        megatron = {**SGD, **megatron}
    else:
        train |= {"optimizer_steps_per_rollout": 2}
        algo |= {"kl_coef": 0.1}
    return configured(path, parallel=layout, model={"random_init_seed": None}, algo=algo, train=train, megatron=megatron)


def work(actor: Any, directory: Path, exact: bool) -> dict[str, Any]:
    """What every layout must agree on."""
    actor.export_hf(str(directory / "before"))
    batch = random_batch(samples=13)
    logprobs = actor.logprobs([batch.ids[a:b].tolist() for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)])
    metrics = [actor.train(batch, step) for step in range(1 if exact else 2)]
    actor.export_hf(str(directory / "after"))
    one = random_batch(samples=1)  # fewer samples than data ranks: one rank idles
    alone = actor.sft_step(one, 2)
    return {"logprobs": logprobs, "metrics": metrics, "alone": alone, "reports": actor.reports}


def rank_main(rank: int, world: int, port: int, path: str, layout: dict[str, Any], megatron: dict[str, Any], directory: Path) -> list[dict[str, Any]]:
    from vime.training.actor import TrainerActor

    out = []
    for exact in (True, False):
        actor = TrainerActor()
        actor.start(run_config(path, layout, exact, megatron), rank, world, "127.0.0.1", port + int(exact))
        out.append(work(actor, directory / str(exact), exact))
        actor.stop()
    return out


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def single(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bool, Path, list[dict[str, Any]]]:
    """The model all layouts start from (two layers tied, three untied), and one process' results."""
    directory = tmp_path_factory.mktemp("single")
    seed = twin(directory / "twin", num_hidden_layers=3 if not request.param else 2, vocab_size=VOCABULARY, tie_word_embeddings=request.param)
    path = str(directory / "model")
    with one_rank(configured(seed)) as actor:
        actor.export_hf(path)
    out = []
    for exact in (True, False):
        with one_rank(run_config(path, {}, exact, {})) as actor:
            out.append(work(actor, directory / str(exact), exact))
    return path, request.param, directory, out


@pytest.mark.timeout(150)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_ranks_equal_one(single, layout, tmp_path):
    from safetensors.torch import load_file

    path, tied, directory, expected = single
    megatron = UNEVEN if layout == "pp2" and not tied else {}
    results = on_ranks(2, rank_main, path, LAYOUTS[layout], megatron, tmp_path / "out", directory=tmp_path / "results")
    (reporting,) = [result for result in results if result[0]["reports"]]
    for index, exact in enumerate((True, False)):
        got, want = reporting[index], expected[index]
        for one, other in zip(got["logprobs"], want["logprobs"], strict=True):
            np.testing.assert_allclose(one, other, atol=5e-6, rtol=0)
        for one, other in zip([*got["metrics"], got["alone"]], [*want["metrics"], want["alone"]], strict=True):
            assert one.keys() == other.keys()
            for key, value in other.items():
                assert one[key] == pytest.approx(value, rel=2e-3, abs=2e-5), f"{layout} {key}"
        before = load_file(tmp_path / "out" / str(exact) / "before" / "model.safetensors")
        model = load_file(Path(path) / "model.safetensors")
        assert before.keys() == model.keys() and all(torch.equal(before[name], model[name]) for name in model), "load, then export, is the identity"
        for when, atol in (("before", 0.0), ("after", 2e-6 if exact else 2e-4)):  # Adam turns a rounding difference of a tiny gradient into a part of lr = 1e-3
            mine, theirs = (load_file(place / str(exact) / when / "model.safetensors") for place in (tmp_path / "out", directory))
            assert mine.keys() == theirs.keys()
            for name in theirs:
                torch.testing.assert_close(mine[name], theirs[name], atol=atol, rtol=0, msg=partial("{} {} {}: {}".format, layout, when, name))
    assert all(result[0]["logprobs"] is None and result[0]["metrics"] == [None] for result in results if result is not reporting)
