"""Generation and scoring by a real vLLM engine, against transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.rollout.child import EngineChild, config_of
from tests.weights.test_sync_vllm import sync_of
from vime.errors import RunError, UserError
from vime.rollout.engine import EngineActor
from vime.rollout.types import GenRequest, GenResult, Sampling, request_seed

pytestmark = pytest.mark.heavy
PROMPTS = [[3 + number, 5, 7, 9 + number] for number in range(8)]


@pytest.fixture(scope="module")
def model(dense_model: Path) -> Path:
    return dense_model


@pytest.fixture(scope="module")
def engine(dense_engine: EngineChild, dense_model: Path) -> EngineChild:
    """The shared engine, with the model's own weights."""
    _, sync = sync_of([dense_engine], config_of(dense_model))
    sync.push(0)
    sync.close()
    return dense_engine


@pytest.fixture(scope="module")
def reference(model: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def ask(engine: EngineChild, sampling: Sampling, *, tokens: int = 8, samples: int = 4, seeds: bool = True) -> list[GenResult]:
    requests = [
        GenRequest(f"0-{group}-{index}", prompt, request_seed(0, 0, group, index) if seeds else None, tokens)
        for group, prompt in enumerate(PROMPTS)
        for index in range(samples)
    ]
    return engine.call("generate", requests, sampling).result(60, "test")


@torch.no_grad()
def logits(reference: Any, ids: Sequence[int]) -> torch.Tensor:
    """[len, V]"""
    return reference(torch.tensor([list(ids)])).logits[0].double()


def expected(reference: Any, result: GenResult, temperature: float, keep: Any = None) -> np.ndarray:
    """Log-probs of the answer under the distribution it was sampled from."""
    prompt = PROMPTS[int(result.sample_id.split("-")[1])]
    scaled = logits(reference, prompt + result.response_ids)[len(prompt) - 1 : -1] / temperature
    if keep is not None:
        scaled = keep(scaled)
    return scaled.log_softmax(-1).gather(-1, torch.tensor(result.response_ids)[:, None])[:, 0].numpy()


def top_k(k: int) -> Any:
    return lambda values: values.masked_fill(values < values.topk(k).values[:, -1:], -torch.inf)


def top_p(p: float) -> Any:
    def keep(values: torch.Tensor) -> torch.Tensor:
        ordered, places = values.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        return torch.empty_like(values).scatter_(-1, places, ordered.masked_fill(before >= p, -torch.inf))

    return keep


@pytest.mark.parametrize(
    ("sampling", "keep"),
    [
        (Sampling(), None),
        (Sampling(temperature=0.5), None),
        (Sampling(temperature=1.7), None),
        (Sampling(temperature=0.8, top_k=5), top_k(5)),
        (Sampling(temperature=0.9, top_p=0.6), top_p(0.6)),
    ],
)
def test_log_probs_are_those_of_the_distribution_sampled_from(sampling: Sampling, keep: Any, engine: EngineChild, reference: Any) -> None:
    for result in ask(engine, sampling):
        assert len(result.logprobs) == len(result.response_ids)
        assert result.logprobs.dtype == np.float32
        np.testing.assert_allclose(result.logprobs, expected(reference, result, sampling.temperature, keep), atol=2e-5)


def sampler_logprob(_: Any, temperature: float) -> float:
    """vLLM's own sampler, as the engine configured it, on two logits: the log-prob it returns for token 0."""
    from tests.rollout.child import STATE

    runner = STATE["engine"]._adapter._engine.model_executor.driver_worker.worker.model_runner
    logits = torch.full((1, 64), -torch.inf)
    logits[0, :2] = torch.tensor([2.0, 0.0])
    scaled = runner.sampler.apply_temperature(logits, torch.tensor([temperature]), True)
    _, logprobs = runner.sampler.topk_topp_sampler(scaled, {}, None, None)
    return float(logprobs[0, 0])


def test_two_logits_at_temperature_one_half(engine: EngineChild) -> None:
    assert engine.run(sampler_logprob, 0.5) == pytest.approx(-0.0181499, abs=1e-6)


def test_samples_follow_the_distribution_they_claim(engine: EngineChild, reference: Any) -> None:
    """The mean of −log p over many first tokens is the entropy: a sampler that differs from its log-probs shows at once."""
    for temperature in (0.5, 1.0):
        results = ask(engine, Sampling(temperature=temperature), tokens=1, samples=256)
        nll = -np.concatenate([result.logprobs for result in results])
        entropies = []
        for prompt in PROMPTS:
            logprobs = (logits(reference, prompt)[-1] / temperature).log_softmax(-1)
            entropies.append(float(-(logprobs.exp() * logprobs).sum()))
        z = (nll.mean() - np.mean(entropies)) / (nll.std() / len(nll) ** 0.5)
        assert abs(z) < 4


def test_seeded_requests_repeat_whatever_else_is_asked(engine: EngineChild) -> None:
    first, second = ask(engine, Sampling()), ask(engine, Sampling())
    assert [result.response_ids for result in first] == [result.response_ids for result in second]
    assert all((left.logprobs == right.logprobs).all() for left, right in zip(first, second, strict=True))
    fewer = ask(engine, Sampling(), samples=2)
    by_id = {result.sample_id: result.response_ids for result in first}
    assert all(by_id[result.sample_id] == result.response_ids for result in fewer)
    assert len({tuple(result.response_ids) for result in first}) > 20
    assert [result.response_ids for result in ask(engine, Sampling(), seeds=False)] != [result.response_ids for result in first]


def test_an_end_mark_exactly_at_the_limit_is_a_stop_and_a_cut_is_a_length(engine: EngineChild) -> None:
    every_id = Sampling(stop_token_ids=tuple(range(64)))
    assert {(result.finish_reason, len(result.response_ids)) for result in ask(engine, every_id, tokens=1)} == {("stop", 1)}
    results = ask(engine, Sampling(), tokens=6, samples=16)
    for result in results:
        assert result.finish_reason == ("stop" if result.response_ids[-1] == 1 else "length")
        assert result.finish_reason == "stop" or len(result.response_ids) == 6
    assert {result.finish_reason for result in results} == {"stop", "length"}


def test_greedy_answers_are_the_reference_models(engine: EngineChild, reference: Any) -> None:
    for result in ask(engine, Sampling(temperature=0.0, purpose="eval"), samples=1):
        prompt = PROMPTS[int(result.sample_id.split("-")[1])]
        greedy = logits(reference, prompt + result.response_ids)[len(prompt) - 1 : -1].argmax(-1)
        assert result.response_ids == greedy.tolist()


def test_teacher_forced_scores_equal_the_reference_at_temperature_1(engine: EngineChild, reference: Any) -> None:
    generator = np.random.default_rng(0)
    sequences = [generator.integers(0, 64, length).tolist() for length in (2, 7, 127, 33)]
    scores = engine.call("logprobs", sequences).result(60, "test")
    for ids, score in zip(sequences, scores, strict=True):
        assert score.dtype == np.float32
        table = logits(reference, ids).log_softmax(-1)
        np.testing.assert_allclose(score, table[:-1].gather(-1, torch.tensor(ids)[1:, None])[:, 0].numpy(), atol=2e-5)


def test_ids_that_the_model_cannot_take_are_refused(engine: EngineChild) -> None:
    with pytest.raises(RunError, match="rollout: sample 0-0-0: ids from 5 to 64, but the model's vocabulary has 64"):
        engine.call("generate", [GenRequest("0-0-0", [5, 64], 1, 4)], Sampling()).result(30, "test")
    with pytest.raises(RunError, match="engine log-probs: sequence 0: 128 ids do not fit an engine of 128"):
        engine.call("logprobs", [[5] * 128]).result(30, "test")
    with pytest.raises(RunError, match="rollout: sample 0-0-0: 0 ids do not fit"):
        engine.call("generate", [GenRequest("0-0-0", [], 1, 4)], Sampling()).result(30, "test")
    assert ask(engine, Sampling())


def start_failing(_: Any, path: str, options: dict[str, Any]) -> None:
    EngineActor().start(config_of(Path(path), vllm=options), 0, path)


def test_a_start_that_vllm_refuses_gives_one_line_with_its_own_words(engine: EngineChild, model: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"engine start: engine 0: vLLM could not start on .*99999") as failure:
        engine.run(start_failing, str(model), {"max_model_len": 99999})
    assert "\n" not in str(failure.value)
    with pytest.raises(UserError, match="vllm.logprobs_mode: cannot be set"):
        engine.run(start_failing, str(model), {"logprobs_mode": "raw_logprobs"})
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model", "architectures": ["NoSuchModel"], "vocab_size": 64}')
    with pytest.raises(RunError, match=r"engine start: engine 0: vLLM could not start on .*(NoSuchModel|no-such-model)") as failure:
        engine.run(start_failing, str(tmp_path), {})
    assert "\n" not in str(failure.value)
