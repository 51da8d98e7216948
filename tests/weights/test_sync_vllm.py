"""Weight sync into real vLLM engines in processes of their own, proven against transformers."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.rollout.child import EngineChild, config_of
from tests.weights.models import ReferenceTrainer
from vime.config.tree import Config
from vime.errors import RunError
from vime.platforms.cpu import CpuPlatform
from vime.rollout.types import GenRequest, Sampling
from vime.weights.handles import LocalWorker, gather_local
from vime.weights.session import WeightSync

pytestmark = pytest.mark.heavy
SEQUENCES = [[5, 9, 12, 33, 7, 50, 2, 8], [3, 3, 60, 41, 22]]


def sync_of(engines: Sequence[Any], config: Config, ranks: int = 1, **options: Any) -> tuple[list[ReferenceTrainer], WeightSync]:
    dtype = getattr(torch, config.model.dtype)
    trainers = [ReferenceTrainer(Path(config.model.path), rank, ranks, dtype) for rank in range(ranks)]
    handles = [LocalWorker(trainer, f"trainer {rank}") for rank, trainer in enumerate(trainers)]
    return trainers, WeightSync(handles, engines, config, CpuPlatform(), gather=gather_local, **options)


def gap(trainer: ReferenceTrainer, engine: EngineChild) -> float:
    reference = [trainer.logprobs([ids])[0] for ids in SEQUENCES]
    held = engine.call("logprobs", SEQUENCES).result(30, "test")
    return max(float(np.abs(left - right).max()) for left, right in zip(reference, held, strict=True))


def generate(engine: EngineChild) -> list:
    return engine.call("generate", [GenRequest("0-0-0", [5, 6, 7], 1, 4)], Sampling()).result(30, "test")


@pytest.mark.parametrize(
    ("transport", "ranks", "weights"),
    [
        ("ipc", 1, {}),
        ("ipc", 2, {"bucket_mb": 0.05}),
        ("broadcast", 2, {"bucket_mb": 0.05}),
        ("p2p", 2, {}),
        ("disk", 1, {}),
        ("ipc", 1, {"encoding": "delta"}),
        ("broadcast", 2, {"encoding": "delta", "bucket_mb": 0.05}),
    ],
)
def test_a_large_step_moves_the_engine_to_the_trainer(
    transport: str, ranks: int, weights: dict, dense_engine: EngineChild, dense_model: Path, tmp_path: Path
) -> None:
    """Tied embeddings included: vLLM's CPU build keeps a packed copy of the output head that no weight of its own refreshes."""
    config = config_of(dense_model, transport=transport, **weights)
    trainers, sync = sync_of([dense_engine], config, ranks, directory=str(tmp_path))
    full_bytes = 0
    for version in range(3):
        for trainer in trainers:
            trainer.change(10 + version, 0.02 if version else 1.0)
        report = sync.push(version)
        assert gap(trainers[0], dense_engine) < 1e-5
        assert report.held_check is not None
        assert report.held_check.largest_gap < 1e-5
        assert 0 < report.held_check.read_back < report.held_check.tensors
        assert dense_engine.call("state").result(9, "") == ("clean", version)
        if version and config.weights.encoding == "delta":
            assert report.base_version == version - 1
            assert report.bytes < 0.3 * full_bytes
        else:
            full_bytes = report.bytes
    assert gap(trainers[0], dense_engine) < 1e-5
    sync.close()


def test_mixture_of_experts_holds_what_it_received(mixture_engine: EngineChild, mixture_model: Path) -> None:
    (trainer,), sync = sync_of([mixture_engine], config_of(mixture_model, bucket_mb=0.2))
    for version in range(2):
        trainer.change(version)
        report = sync.push(version)
        assert report.held_check is not None
        assert report.held_check.method == "digest+probe"
        assert gap(trainer, mixture_engine) < 1e-5
    sync.close()


def skip_moe_reset(_: Any, skip: bool) -> None:
    from vime.platforms import registry

    platform = registry.get("cpu")
    if skip:
        platform.before_weight_reload = lambda model: None
    else:
        del platform.before_weight_reload


def skip_head_repack(_: Any, skip: bool) -> None:
    from vime.platforms import registry

    platform = registry.get("cpu")
    if skip:
        platform.after_weight_reload = lambda model: None
    else:
        del platform.after_weight_reload


def test_the_held_proof_notices_the_moe_reload_defect(mixture_engine: EngineChild, mixture_model: Path) -> None:
    """vLLM's CPU build computes garbage in silence when MoE layers are reloaded without a reset, although every tensor arrives unchanged."""
    (trainer,), sync = sync_of([mixture_engine], config_of(mixture_model))
    mixture_engine.run(skip_moe_reset, True)
    trainer.change(3)
    with pytest.raises(RunError, match=r"engine 0 does not compute with the weights it received: .* although every tensor arrived unchanged"):
        sync.push(0)
    assert mixture_engine.call("state").result(9, "") == ("dirty", -1)
    mixture_engine.run(skip_moe_reset, False)
    assert sync.push(1).held_check.largest_gap < 1e-5
    sync.close()


def test_the_held_proof_notices_a_tied_head_that_was_not_packed_again(dense_engine: EngineChild, dense_model: Path) -> None:
    (trainer,), sync = sync_of([dense_engine], config_of(dense_model))
    sync.push(0)
    dense_engine.run(skip_head_repack, True)
    trainer.change(3)
    with pytest.raises(RunError, match="engine 0 does not compute with the weights it received"):
        sync.push(1)
    dense_engine.run(skip_head_repack, False)
    assert sync.push(2).held_check.largest_gap < 1e-5
    sync.close()


def corrupt_received(engine: Any) -> None:
    """Change one element between the wire and the model."""
    from vime.rollout.vllm_compat.worker import LayerwiseLoader

    original = LayerwiseLoader.load

    def load(self: Any, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        LayerwiseLoader.load = original
        original(self, [(name, tensor + 1 if name == "model.norm.weight" else tensor) for name, tensor in tensors])

    LayerwiseLoader.load = load


def test_a_tensor_that_changes_on_the_way_into_the_model_is_named(dense_engine: EngineChild, dense_model: Path) -> None:
    _, sync = sync_of([dense_engine], config_of(dense_model))
    dense_engine.run(corrupt_received)
    with pytest.raises(RunError, match=r"weight sync: model\.norm\.weight: engine 0 holds digest .* after the sync, the trainer sent"):
        sync.push(0)
    sync.push(1)
    sync.close()


def test_an_engine_without_committed_weights_refuses_to_generate_and_score(dense_engine: EngineChild, dense_model: Path) -> None:
    _, sync = sync_of([dense_engine], config_of(dense_model))
    sync.push(0)
    assert len(generate(dense_engine)) == 1
    dense_engine.call("begin", 1).result(9, "")
    dense_engine.call("abort", 1).result(9, "")
    for call in (lambda: generate(dense_engine), lambda: dense_engine.call("logprobs", SEQUENCES).result(9, "")):
        with pytest.raises(RunError, match=r"holds no committed weights \(dirty\): it refuses to generate or score until a full weight sync"):
            call()
    with pytest.raises(RunError, match="engine 0 is dirty and cannot resume"):
        dense_engine.call("resume").result(9, "")
    sync.close()
    _, again = sync_of([dense_engine], config_of(dense_model))
    assert again.push(2).base_version is None
    assert generate(dense_engine)[0].weight_version == 2
    again.close()


def test_old_blocks_are_not_read_under_new_weights(dense_engine: EngineChild, dense_model: Path) -> None:
    """A prompt longer than a cache block, generated from before and after a sync: log-probs must be those of the new weights."""
    config = config_of(dense_model)
    (trainer,), sync = sync_of([dense_engine], config)
    prompt = list(range(3, 19))
    for version in range(2):
        trainer.change(40 + version)
        sync.push(version)
        result = dense_engine.call("generate", [GenRequest(f"{version}-0-{index}", prompt, index, 8) for index in range(3)], Sampling()).result(30, "")
        for answer in result:
            reference = trainer.logprobs([prompt + answer.response_ids])[0][len(prompt) - 1 :]
            assert np.abs(reference - answer.logprobs).max() < 1e-5
    sync.close()


def test_bfloat16_engines_of_a_float32_trainer_hold_the_cast_weights(dense_model: Path) -> None:
    config = config_of(dense_model, rollout={"dtype": "bfloat16"})
    child = EngineChild(config)
    (trainer,), sync = sync_of([child], config)
    trainer.change(1)
    report = sync.push(0)
    assert report.held_check.mean_gap < 0.06
    assert report.digests["model.norm.weight"] == CpuPlatform().tensor_digest(trainer.model.model.norm.weight.to(torch.bfloat16))
    sync.close()
    child.close()


def process_id(_: Any) -> int:
    return os.getpid()


class Mortal(EngineChild):
    """A handle whose lost process is a RunError, as the loop's `WorkerDied`."""

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        pending = super().call(method, *args, **kwargs)
        result = pending.result

        def patched(timeout_s: float, stage: str) -> Any:
            try:
                return result(timeout_s, stage)
            except Exception as error:
                raise error if isinstance(error, RunError) else RunError(stage, f"{self.name} died in {method}") from error

        pending.result = patched
        return pending


def test_an_engine_that_dies_between_begin_and_commit_leaves_nobody_generating_and_its_successor_rejoins(dense_engine: EngineChild, dense_model: Path) -> None:
    config = config_of(dense_model, transport="broadcast")
    engines = [dense_engine, Mortal(config, "engine 1", 1)]
    (trainer,), sync = sync_of(engines, config)
    sync.push(0)
    engines[0].call("begin", 1).result(9, "")
    engines[0].call("abort", 1).result(9, "")
    os.kill(engines[1].run(process_id), signal.SIGKILL)
    with pytest.raises(RunError, match="engine 1 died in begin"):
        sync.push(1)
    assert sync.version is None
    assert engines[0].call("state").result(9, "") == ("dirty", -1)
    with pytest.raises(RunError, match="dirty"):
        generate(engines[0])
    successor = Mortal(replace(config), "engine 1", 1)
    sync.rejoin(1, successor)
    trainer.change(5)
    report = sync.push(2)
    assert report.base_version is None
    assert gap(trainer, engines[0]) < 1e-5
    assert gap(trainer, successor) < 1e-5
    sync.close()
    successor.close()
