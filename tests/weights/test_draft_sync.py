"""The draft layers of multi-token prediction in the engine: updated in a transaction of their own, proven, and seen in the accept length.

A real trainer in this process, a real engine in one of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rollout.child import EngineChild, config_of
from tests.training.families import MODELS
from tests.training.ranks import configured, free_port, one_rank, twin
from vime.config.tree import Config, MtpConfig, SpeculativeConfig, TrainConfig
from vime.errors import RunError, UserError
from vime.platforms.cpu import CpuPlatform
from vime.rollout.types import GenRequest, Sampling
from vime.weights.handles import LocalWorker, gather_local
from vime.weights.session import WeightSync

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(170)]

TOKENS, STEPS = 1, 40
CLOSE = 2e-4  # largest |Δ log p| of some hundred tokens; the weights are large
PROMPTS = [[3 + 7 * (index % 4), 9, 12, 5] for index in range(32)]  # few, so that a draft learns in some steps what follows them


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GLM-4.7 twin with a draft layer, its predictions far from uniform: a draft that knows nothing is seldom right."""
    directory = tmp_path_factory.mktemp("draft")
    changes = {**MODELS["glm4-moe"], "vocab_size": 64, "num_nextn_predict_layers": 1, "initializer_range": 0.8}
    with one_rank(configured(twin(directory / "twin", **changes), train={"mtp": MtpConfig(loss_weight=1.0)})) as actor:
        actor.export_hf(str(directory / "hf"))
    return directory / "hf"


def settings(model: Path, **weights: Any) -> Config:
    config = config_of(model, rollout={"max_prompt_tokens": 32, "max_response_tokens": 32, "speculative": SpeculativeConfig("mtp", TOKENS)}, **weights)
    return dataclasses.replace(config, train=TrainConfig(lr=1e-2, mtp=MtpConfig(loss_weight=1.0)))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[EngineChild]:
    child = EngineChild(settings(model))
    yield child
    child.close()


@pytest.fixture
def trainer(model: Path) -> Iterator[Any]:
    from vime.loop.trainer_actor import Trainer

    actor = Trainer()
    actor.start(settings(model), 0, 1, "127.0.0.1", free_port())
    yield actor
    actor.stop()


def sync_of(trainer: Any, engine: EngineChild, config: Config, **options: Any) -> WeightSync:
    return WeightSync([LocalWorker(trainer, "trainer 0")], [engine], config, CpuPlatform(), gather=gather_local, **options)


def rollout(engine: EngineChild, seed: int) -> tuple[list[Any], float]:
    """Answers, and how many tokens a step of the model gave."""
    before = engine.call("speculated").result(30, "")
    requests = [GenRequest(f"{seed}-{index}-0", prompt, 1000 * seed + index, 24) for index, prompt in enumerate(PROMPTS)]
    results = engine.call("generate", requests, Sampling()).result(60, "")
    drafts, accepted = np.subtract(engine.call("speculated").result(30, ""), before)
    assert drafts > 100
    return results, 1 + accepted / drafts


def batch(results: list[Any]) -> Any:
    """Advantages are 0: the policy stays as it is, the draft learns to follow it."""
    from vime.training.batch import TrainBatch

    sequences = [prompt + result.response_ids for prompt, result in zip(PROMPTS, results, strict=True)]
    masks = [[0] * len(prompt) + [1] * len(result.response_ids) for prompt, result in zip(PROMPTS, results, strict=True)]
    made = TrainBatch.of(sequences, masks)
    logprobs = np.concatenate([np.concatenate([np.zeros(len(prompt)), result.logprobs]) for prompt, result in zip(PROMPTS, results, strict=True)])
    return dataclasses.replace(made, advantages=np.zeros_like(made.advantages), engine_logprobs=logprobs.astype(np.float32))


def gap(trainer: Any, results: list[Any]) -> float:
    """Largest difference between the log-probs that came with speculative answers and the trainer's; asserts the mean."""
    scored = trainer.logprobs([prompt + result.response_ids for prompt, result in zip(PROMPTS, results, strict=True)])
    pairs = zip(PROMPTS, scored, results, strict=True)
    gaps = np.concatenate([np.abs(values[len(prompt) - 1 :] - result.logprobs) for prompt, values, result in pairs])
    assert gaps.mean() < 1e-5
    return float(gaps.max())


def skip_draft(_: Any, skip: bool) -> None:
    """Receive the draft's tensors and load none of them."""
    from vime.rollout.vllm_compat.worker import LayerwiseLoader

    if not hasattr(LayerwiseLoader, "whole"):
        LayerwiseLoader.whole = LayerwiseLoader.load

    def load(self: Any, tensors: Any) -> None:
        if not type(self.model).__name__.endswith("MTP"):
            LayerwiseLoader.whole(self, tensors)

    LayerwiseLoader.load = load if skip else LayerwiseLoader.whole


def break_draft(_: Any) -> None:
    """The next load into the draft stops half-way."""
    from vime.rollout.vllm_compat.worker import LayerwiseLoader

    whole = LayerwiseLoader.load

    def load(self: Any, tensors: Any) -> None:
        if not type(self.model).__name__.endswith("MTP"):
            return whole(self, tensors)
        LayerwiseLoader.load = whole
        whole(self, tensors[: len(tensors) // 2])
        raise RunError("weight sync", "the draft broke")

    LayerwiseLoader.load = load


def test_a_draft_that_is_updated_follows_the_model_and_one_that_is_not_is_noticed(trainer: Any, engine: EngineChild, model: Path) -> None:
    sync = sync_of(trainer, engine, settings(model))
    report = sync.push(0)
    draft = set(trainer.trained.table.draft)
    assert draft and draft <= set(report.digests), "every tensor of the draft is sent and its digest compared"
    assert report.held_check is not None and report.held_check.largest_gap < CLOSE
    results, untrained = rollout(engine, 0)
    assert gap(trainer, results) < CLOSE, "speculation does not change the log-probs"
    for step in range(STEPS):
        metrics = trainer.train(batch(results), step)
    assert metrics["train/mtp_loss"] < 1.0
    old_policy = trainer.logprobs([[5, 6, 7, 8]])[0]

    only_model = dataclasses.replace(settings(model), rollout=dataclasses.replace(settings(model).rollout, speculative=SpeculativeConfig()))
    sync.close()
    sync = sync_of(trainer, engine, only_model)
    sync.push(1)  # the model alone: what a framework does that forgets the draft
    results, stale = rollout(engine, 1)
    assert gap(trainer, results) < CLOSE
    sync.close()

    sync = sync_of(trainer, engine, settings(model))
    sync.push(2)
    results, updated = rollout(engine, 2)
    assert gap(trainer, results) < CLOSE
    np.testing.assert_allclose(trainer.logprobs([[5, 6, 7, 8]])[0], old_policy, atol=CLOSE)
    assert updated > stale + 0.1, f"accept length {untrained:.3f} untrained, {stale:.3f} when the draft update is skipped, {updated:.3f} with it"

    engine.run(skip_draft, True)
    trainer.train(batch(results), STEPS)
    with pytest.raises(RunError, match=r"weight sync: model\.layers\.2\.\S+: engine 0 holds digest .* after the sync, the trainer sent"):
        sync.push(3)
    assert engine.call("state").result(9, "") == ("dirty", -1), "whole or not at all: the model of version 3 does not generate with another draft"
    engine.run(skip_draft, False)
    sync.push(4)
    assert gap(trainer, rollout(engine, 4)[0]) < CLOSE

    engine.run(break_draft)
    with pytest.raises(RunError, match="the draft broke"):
        sync.push(5)
    assert engine.call("state").result(9, "") == ("dirty", -1)
    assert sync.push(6).held_check.largest_gap < CLOSE
    assert gap(trainer, rollout(engine, 6)[0]) < CLOSE
    sync.close()


@pytest.mark.parametrize("weights", [{"transport": "broadcast", "bucket_mb": 0.05}, {"transport": "disk"}, {"encoding": "delta"}, {"transport": "p2p"}])
def test_the_draft_travels_by_every_transport(weights: dict[str, Any], trainer: Any, engine: EngineChild, model: Path, tmp_path: Path) -> None:
    sync = sync_of(trainer, engine, settings(model, **weights), directory=str(tmp_path / "weights"))
    for version in range(2):
        results, _ = rollout(engine, 10 + version) if version else ([], 0.0)
        if version:
            trainer.train(batch(results), version)
        report = sync.push(version)
        assert set(trainer.trained.table.draft) <= {key.partition("[")[0] for key in report.digests}
        assert report.held_check.largest_gap < CLOSE and report.held_check.read_back > 8
        assert report.base_version == (0 if version and weights.get("encoding") == "delta" else None)
    assert gap(trainer, rollout(engine, 20)[0]) < CLOSE
    sync.close()


def test_speculation_and_an_option_of_the_same_meaning_exclude_each_other(model: Path) -> None:
    from vime.rollout.start import engine_spec
    from vime.rollout.vllm_compat.llm_engine import engine_arguments
    from vime.rollout.vllm_compat.v0_23 import Adapter

    config = dataclasses.replace(settings(model), vllm={"speculative-config": {"method": "ngram"}})
    with pytest.raises(UserError, match=r"vllm.speculative_config: cannot be set beside rollout.speculative"):
        engine_arguments(engine_spec(config, str(model), load_weights=False), "x")
    with pytest.raises(UserError, match="vLLM 0.23 cannot update a draft model's weights"):
        Adapter().start(engine_spec(settings(model), str(model), load_weights=False))


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_compiled_engine_follows_updates_of_model_and_draft(trainer: Any, model: Path) -> None:
    """Compiled code must not keep old weights: both transactions, then the log-probs and the accept length."""
    config = dataclasses.replace(settings(model), vllm={"enforce_eager": False})
    child = EngineChild(config)
    sync = sync_of(trainer, child, config)
    sync.push(0)
    results, untrained = rollout(child, 0)
    assert gap(trainer, results) < CLOSE
    for step in range(STEPS):
        trainer.train(batch(results), step)
    report = sync.push(1)
    assert report.held_check is not None and report.held_check.largest_gap < CLOSE
    results, updated = rollout(child, 1)
    assert gap(trainer, results) < CLOSE
    assert updated > untrained + 0.1
    sync.close()
    child.close()
