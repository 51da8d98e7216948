"""Every family in every parallel layout gives what one process gives.

One set of processes a layout goes through all families: what costs is starting them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.families import DEEP, DRAFTING, MODELS, SPARSE
from tests.training.ranks import configured, free_port, on_ranks, one_rank, random_batch, twin
from vime.config.tree import MtpConfig

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(170)]

SGD = {"optimizer": "sgd", "sgd_momentum": 0.0}  # its update is the gradient itself: Adam's would hide a wrong scale
DENSE = tuple(name for name in MODELS if name not in SPARSE)


@dataclass(frozen=True)
class Case:
    """A layout: `parallel.*`, fields of megatron.model, the models that it is for, and `train.recompute`."""

    world: int
    parallel: dict[str, Any]
    megatron: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = tuple(MODELS)
    recompute: str = "none"
    stateful: tuple[str, ...] | None = None  # None: all

    def variants(self, name: str) -> tuple[bool, ...]:
        """`exact` of the configurations that a model is tested in."""
        return (True, False) if self.stateful is None or name in self.stateful else (True,)


GATHER = {"moe_token_dispatcher_type": "allgather"}
# What differs between families as layouts see it: dense and tied; experts; latents, a shared expert and draft layers; a norm over all heads; delta nets.
KINDS = ("qwen3", "qwen3-moe", "glm4-moe-lite", "minimax-m2", "qwen3-5")
STATEFUL = ("qwen3", "glm4-moe-lite")  # those whose optimizer and checkpoints are tested too in the covering layouts
COVERING = {
    "dp2": Case(2, {"data": 2}),
    "tp2sp": Case(2, {"tensor": 2, "sequence_parallel": True}),
    "pp2": Case(2, {"pipeline": 2}),
    "cp2": Case(2, {"context": 2}),
    "ep2dp2": Case(2, {"data": 2, "expert": 2}, models=SPARSE),
    "tp2etp2": Case(2, {"tensor": 2, "expert_tensor": 2, "sequence_parallel": True}, models=SPARSE),
}
REST = {f"{name}-rest": replace(case, models=tuple(model for model in case.models if model not in KINDS)) for name, case in COVERING.items()}
COVERING = {name: replace(case, models=tuple(model for model in case.models if model in KINDS), stateful=STATEFUL) for name, case in COVERING.items()}
LONG = {
    "tp2": Case(2, {"tensor": 2}, models=DENSE),
    "pp2-first-stage-of-two": Case(2, {"pipeline": 2}, {"num_layers_in_first_pipeline_stage": 2}, models=("qwen3-untied-3",)),
    "pp2-last-stage-of-three": Case(2, {"pipeline": 2}, {"num_layers_in_last_pipeline_stage": 3}, models=("llama-4",)),
    "ep2dp2-allgather": Case(2, {"data": 2, "expert": 2}, GATHER, models=SPARSE),
    "tp2pp2": Case(4, {"tensor": 2, "pipeline": 2, "sequence_parallel": True}),
    "tp2cp2": Case(4, {"tensor": 2, "context": 2, "sequence_parallel": True}),
    "pp2cp2-recompute": Case(4, {"pipeline": 2, "context": 2}, recompute="full"),
    "cp2dp2": Case(4, {"context": 2, "data": 2}),
    "cp4": Case(4, {"context": 4}),
    "dp2tp2": Case(4, {"data": 2, "tensor": 2, "sequence_parallel": True}),
    "pp4": Case(4, {"pipeline": 4}, models=("llama-4",)),
    "ep4dp4": Case(4, {"data": 4, "expert": 4}, models=SPARSE),
    "ep2cp2": Case(2, {"context": 2, "expert": 2}, models=SPARSE),
    "tp2ep2": Case(2, {"tensor": 2, "expert": 2, "sequence_parallel": True}, models=SPARSE),
    "tp2ep2dp2": Case(4, {"tensor": 2, "data": 2, "expert": 2, "expert_tensor": 2, "sequence_parallel": True}, models=SPARSE),
    "pp2ep2": Case(4, {"pipeline": 2, "data": 2, "expert": 2}, models=SPARSE),
    "tp2ep4cp2": Case(4, {"tensor": 2, "context": 2, "expert": 4, "sequence_parallel": True}, models=SPARSE),
}


def run_config(path: str, parallel: dict[str, Any], model: dict[str, Any], exact: bool, *, mtp: bool = False, recompute: str = "none") -> Any:
    """`exact`: SGD; else Adam over a distributed optimizer, two updates a rollout, a reference, whole-sequence weights. `mtp`: the draft layers are trained,
    their loss moving the trunk too."""
    train: dict[str, Any] = {"max_tokens_per_microbatch": 60, "recompute": recompute}
    if mtp:
        train["mtp"] = MtpConfig(loss_weight=0.3, gradient="joint")
    megatron: dict[str, Any] = {"model": model}
    algo: dict[str, Any] = {}
    if exact:
        train |= {"lr": 0.5, "clip_grad": 0.0, "distributed_optimizer": False}
        megatron["optimizer"] = SGD
    else:
        train |= {"optimizer_steps_per_rollout": 2}
        algo |= {"kl_coef": 0.1, "aggregation": "sequence"}
    return configured(path, parallel=parallel, model={"random_init_seed": None}, algo=algo, train=train, megatron=megatron)


def work(actor: Any, directory: Path, exact: bool, single: Path | None = None) -> dict[str, Any]:
    """What every layout must agree on. `single`: where one process left its files; its checkpoint is gone on from."""
    if exact:
        actor.export_hf(str(directory / "before"))
    batch = random_batch(samples=13)
    logprobs = actor.logprobs([batch.ids[a:b].tolist() for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)])
    metrics = [actor.train(batch, step) for step in range(1 if exact else 2)]
    actor.export_hf(str(directory / "after"))
    alone = actor.sft_step(random_batch(samples=1), 2)  # fewer samples than data ranks: one rank idles
    resumed = None
    if not exact:
        actor.save(str(directory / "checkpoint"), {"source": 5})
        assert actor.load(str((single or directory) / "checkpoint")) == {"source": 5}
        resumed = actor.train(batch, 3)
    return {"logprobs": logprobs, "metrics": [*metrics, alone, resumed], "reports": actor.reports}


def rank_main(rank: int, world: int, port: int, singles: dict[str, Single], ports: list[int], case: Case, directory: Path) -> dict[Any, Any]:
    from vime.training.actor import TrainerActor

    out = {}
    for name, single in singles.items():
        for exact in case.variants(name):
            config = run_config(single.path, case.parallel, case.megatron, exact, mtp=name in DRAFTING, recompute=case.recompute)
            actor = TrainerActor()
            actor.start(config, rank, world, "127.0.0.1", ports.pop())
            out[name, exact] = work(actor, directory / name / str(exact), exact, single.directory / str(exact))
            actor.stop()
    return out


def free_ports(count: int) -> list[int]:
    """Distinct ones."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


@dataclass(frozen=True)
class Single:
    """A model and what one process makes of it."""

    path: str
    directory: Path
    results: dict[bool, dict[str, Any]]


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Single]:
    """Filled as tests ask for models."""
    root, made = tmp_path_factory.mktemp("single"), {}

    class Lazy(dict[str, Single]):
        def __missing__(self, name: str) -> Single:
            directory = root / name
            seed = twin(directory / "twin", **{**MODELS, **DEEP}[name])
            path = str(directory / "model")
            mtp = name in DRAFTING
            with one_rank(configured(seed, train={"mtp": MtpConfig(loss_weight=float(mtp))})) as actor:
                actor.export_hf(path)
            results = {}
            for exact in (True, False):
                with one_rank(run_config(path, {}, {}, exact, mtp=mtp)) as actor:
                    results[exact] = work(actor, directory / str(exact), exact)
            self[name] = Single(path, directory, results)
            return self[name]

    return Lazy(made)


def check(singles: dict[str, Single], case: Case, tmp_path: Path, seconds: float = 120) -> None:
    chosen = {name: singles[name] for name in case.models}
    results = on_ranks(case.world, rank_main, chosen, free_ports(2 * len(chosen)), case, tmp_path / "out", directory=tmp_path / "results", seconds=seconds)
    for name in case.models:
        for exact in case.variants(name):
            compare(f"{name} {'sgd' if exact else 'adam'}", singles[name], [result[name, exact] for result in results], tmp_path / "out" / name, exact)


def compare(what: str, single: Single, results: list[dict[str, Any]], out: Path, exact: bool) -> None:
    (got,) = [result for result in results if result["reports"]]
    want = single.results[exact]
    for one, other in zip(got["logprobs"], want["logprobs"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=0, err_msg=what)
    for step, (one, other) in enumerate(zip(got["metrics"], want["metrics"], strict=True)):
        assert (one or {}).keys() == (other or {}).keys()
        for key, value in (other or {}).items():
            assert one[key] == pytest.approx(value, rel=2e-3, abs=2e-5), f"{what}: {key} of step {step}"
    if exact:
        same(f"{what} load, then export", tensors(out / "True" / "before"), tensors(Path(single.path)), atol=0.0)
    # Adam turns a rounding difference of a tiny gradient into a part of lr = 1e-3
    same(f"{what} after the step", tensors(out / str(exact) / "after"), tensors(single.directory / str(exact) / "after"), atol=5e-6 if exact else 5e-4)
    assert all(result["logprobs"] is None and set(result["metrics"]) == {None} for result in results if result is not got)


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


def same(what: str, mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], atol: float) -> None:
    assert mine.keys() == theirs.keys(), what
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], atol=atol, rtol=0, msg=partial("{} {}: {}".format, what, name))


@pytest.mark.parametrize("layout", COVERING)
def test_a_layout_equals_one_process(singles, layout, tmp_path):
    check(singles, COVERING[layout], tmp_path)


@pytest.mark.parametrize("layout", ["tp2sp", "ep2dp2"])
def test_one_process_goes_on_from_a_layouts_checkpoint(singles, layout, tmp_path):
    """The other direction is part of every layout's work."""
    name = "qwen3-moe"
    case = replace(COVERING[layout], models=(name,), stateful=None)
    results = on_ranks(2, rank_main, {name: singles[name]}, free_ports(2), case, tmp_path / "out", directory=tmp_path / "results")
    expected = singles[name].results[False]["metrics"][-1]
    with one_rank(run_config(singles[name].path, {}, {}, False)) as actor:
        actor.load(str(tmp_path / "out" / name / "False" / "checkpoint"))
        resumed = actor.train(random_batch(samples=13), 3)
    assert any(result[name, False]["reports"] for result in results)
    for key, value in expected.items():
        assert resumed[key] == pytest.approx(value, rel=2e-3, abs=2e-5), key


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", [*REST, *LONG])
def test_a_combination_equals_one_process(singles, layout, tmp_path):
    check(singles, {**REST, **LONG}[layout], tmp_path, seconds=600)
