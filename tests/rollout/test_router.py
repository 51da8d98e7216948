"""Groups over engines: whole, unique, in order; retries are bounded; what cannot be filled follows the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollout.child import config_of
from vime.config.tree import Config, SpeculativeConfig
from vime.data import Prompt, group_samples
from vime.errors import RunError
from vime.rollout.router import Router, complete, spread
from vime.rollout.types import GenRequest, GenResult, Sampling, request_seed
from vime.weights.handles import LocalWorker


class Letters:
    """A tokenizer of the alphabet."""

    eos_token_id = 1

    def __len__(self) -> int:
        return 64

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(90 + token) for token in ids)

    def batch_decode(self, answers: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [self.decode(ids) for ids in answers]


def answer(request: GenRequest, reason: str = "stop") -> GenResult:
    return GenResult(request.sample_id, [7, 9, 1], np.float32([-0.5, -0.25, -0.1]), reason, 4)


class FakeEngine:
    """Answers every request; `fault` may change the answers of a call or raise."""

    def __init__(self, fault: Callable[[int, list[GenResult]], list[GenResult]] = lambda call, results: results):
        self.calls: list[tuple[list[GenRequest], Sampling]] = []
        self.fault = fault

    def generate(self, requests: list[GenRequest], sampling: Sampling) -> list[GenResult]:
        self.calls.append((requests, sampling))
        return self.fault(len(self.calls), [answer(request) for request in requests])


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(tmp_path, rollout={"samples_per_prompt": 3, "max_retries": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "stop_token_ids": (9,)})


def prompts(count: int, first: int = 100) -> list[tuple[int, Prompt]]:
    return [(first + number, Prompt(number, f"p{number}", [2, 3 + number], "x")) for number in range(count)]


def router(config: Config, *engines: FakeEngine, **options: Any) -> Router:
    return Router([LocalWorker(engine, f"engine {index}") for index, engine in enumerate(engines)], config, Letters(), **options)


def with_policy(config: Config, policy: str) -> Config:
    return replace(config, rollout=replace(config.rollout, incomplete_group=policy))


def test_every_group_is_whole_unique_and_in_order_whatever_the_number_of_engines(config: Config) -> None:
    runs = []
    for count in (1, 2, 3):
        engines = [FakeEngine() for _ in range(count)]
        samples = router(config, *engines).generate(5, prompts(4))
        assert [sample.sample_id for sample in samples] == [f"5-{group}-{index}" for group in range(100, 104) for index in range(3)]
        assert {len(members) for members in group_samples(samples, 3).values()} == {3}
        for engine in engines:
            for requests, _ in engine.calls:
                assert all(sum(request.sample_id.startswith(f"5-{group}-") for request in requests) in (0, 3) for group in range(100, 104))
        runs.append([(sample.sample_id, sample.text, sample.weight_version) for sample in samples])
    assert runs[0] == runs[1] == runs[2]


def test_the_engine_is_asked_with_the_configured_sampling_and_pinned_seeds(config: Config) -> None:
    engine = FakeEngine()
    (sample, *_) = router(config, engine).generate(5, prompts(1))
    requests, sampling = engine.calls[0]
    assert sampling == Sampling(0.7, 0.9, 5, (1, 9), "train")
    assert [request.seed for request in requests] == [request_seed(config.seed, 5, 100, index) for index in range(3)]
    assert {request.max_tokens for request in requests} == {config.rollout.max_response_tokens}
    assert sample.text == "ac"  # the end mark is not part of the answer
    assert sample.engine_logprobs.tolist() == [-0.5, -0.25, np.float32(-0.1)]
    assert sample.loss_mask.tolist() == [1, 1, 1]


def raising(message: str, times: int) -> Callable[[int, list[GenResult]], list[GenResult]]:
    def fault(call: int, results: list[GenResult]) -> list[GenResult]:
        if call <= times:
            raise RunError("rollout", message)
        return results

    return fault


def test_a_failed_group_is_retried_with_the_same_seeds_and_counted(config: Config) -> None:
    events: list[tuple[str, dict]] = []
    engine = FakeEngine(raising("engine 0: out of blocks", 1))
    found = router(config, engine, event=lambda kind, **fields: events.append((kind, fields)))
    samples = found.generate(5, prompts(2))
    assert len(samples) == 6
    assert [len(requests) for requests, _ in engine.calls] == [6, 3, 3]  # each group alone, so that one bad group spoils no other
    assert engine.calls[1][0] == engine.calls[0][0][:3]
    assert found.counts.metrics() == {"rollout/group_retry_count": 2, "rollout/group_refill_count": 0, "rollout/group_drop_count": 0}
    assert [kind for kind, _ in events] == ["retry", "retry"]
    assert events[0][1]["text"] == "engine 0: out of blocks"


def test_retries_are_bounded_and_the_engines_own_message_ends_the_run(config: Config) -> None:
    engine = FakeEngine(raising("engine 0: out of blocks", 99))
    with pytest.raises(RunError, match=r"rollout: group 100 failed 3 times \(rollout.max_retries\): engine 0: out of blocks"):
        router(config, engine).generate(5, prompts(2))
    assert len(engine.calls) == 3


def only_group(group: int) -> Callable[[int, list[GenResult]], list[GenResult]]:
    return lambda call, results: [result for result in results if not result.sample_id.startswith(f"5-{group}-") or result.sample_id.endswith("-0")]


def test_a_group_that_cannot_be_filled_is_dropped_whole(config: Config) -> None:
    events: list[str] = []
    found = router(with_policy(config, "drop"), FakeEngine(only_group(101)), event=lambda kind, **_: events.append(kind))
    samples = found.generate(5, prompts(3))
    assert sorted({sample.group_id for sample in samples}) == [100, 102]
    assert found.counts.metrics()["rollout/group_drop_count"] == 1
    assert found.counts.reasons == ["the engine returned no answer for sample 5-101-1"]
    assert events == ["retry", "retry", "sample_dropped"]


def test_a_group_that_cannot_be_filled_is_refilled_by_the_next_prompt(config: Config) -> None:
    asked: list[int] = []

    def refill(count: int) -> list[tuple[int, Prompt]]:
        asked.append(count)
        return prompts(count, first=200)

    found = router(with_policy(config, "refill"), FakeEngine(only_group(101)))
    samples = found.generate(5, prompts(3), refill)
    assert sorted({sample.group_id for sample in samples}) == [100, 102, 200]
    assert asked == [1]
    assert found.counts.refilled == 1


def test_refilling_ends_when_every_prompt_fails(config: Config) -> None:
    engine = FakeEngine(raising("down", 10_000))
    with pytest.raises(RunError, match="could not be filled and there is no other prompt to take: down"):
        router(with_policy(config, "refill"), engine).generate(5, prompts(1), lambda count: prompts(count, first=300))


def test_an_answer_cut_by_a_weight_update_spoils_its_group(config: Config) -> None:
    def fault(call: int, results: list[GenResult]) -> list[GenResult]:
        return [GenResult(r.sample_id, r.response_ids[:1], r.logprobs[:1], "abort", 4) if call == 1 and r.sample_id == "5-100-1" else r for r in results]

    samples = router(config, FakeEngine(fault)).generate(5, prompts(2))
    assert {sample.finish_reason for sample in samples} == {"stop"}


def test_a_doubled_answer_is_an_error_not_a_sample(config: Config) -> None:
    with pytest.raises(RunError, match="sample 5-100-0 arrived twice"):
        router(config, FakeEngine(lambda call, results: [results[0], *results])).generate(5, prompts(1))


def test_a_late_answer_of_another_call_is_not_taken() -> None:
    requests = [GenRequest("5-1-0", [2], 0, 4)]
    stray = answer(GenRequest("4-1-0", [2], 0, 4))
    results, _ = complete(requests, [stray, answer(requests[0])], "")
    assert results is not None
    assert [result.sample_id for result in results] == ["5-1-0"]
    results, problem = complete(requests, [stray], "")
    assert results is None
    assert problem == "the engine returned no answer for sample 5-1-0"


class Died(RunError):
    """As the loop's WorkerDied."""


def test_a_dead_engine_is_not_retried_here(config: Config) -> None:
    def fault(call: int, results: list[GenResult]) -> list[GenResult]:
        raise Died("rollout", "engine 0 died")

    engine = FakeEngine(fault)
    with pytest.raises(Died):
        router(config, engine).generate(5, prompts(2))
    assert len(engine.calls) == 1


def test_evaluation_is_greedy_complete_and_in_the_prompts_order(config: Config) -> None:
    engines = [FakeEngine(), FakeEngine()]
    samples = router(config, *engines).evaluate(9, [prompt for _, prompt in prompts(5)])
    assert [sample.prompt.prompt_id for sample in samples] == [0, 1, 2, 3, 4]
    assert {sampling for engine in engines for _, sampling in engine.calls} == {Sampling(0.0, 1.0, -1, (1, 9), "eval")}
    with pytest.raises(RunError, match="eval: engine 0: out of blocks"):
        router(config, FakeEngine(raising("engine 0: out of blocks", 1))).evaluate(9, [prompt for _, prompt in prompts(2)])


@given(st.lists(st.integers(), unique=True, max_size=40), st.integers(1, 6))
def test_spreading_keeps_order_and_balance(groups: list[int], engines: int) -> None:
    shares = spread(groups, engines)
    assert [group for share in shares for group in share] == groups
    assert len(shares) == engines
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


class Speculating(FakeEngine):
    """Counts drafts and accepted tokens from its start, as an engine does: 10 drafts a call, `accepted` of them taken."""

    def __init__(self, accepted: int):
        super().__init__()
        self.accepted = accepted

    def speculated(self) -> tuple[int, int]:
        return 10 * len(self.calls), self.accepted * len(self.calls)


def test_accept_length_is_that_of_the_step_alone(config: Config) -> None:
    config = replace(config, rollout=replace(config.rollout, speculative=SpeculativeConfig("mtp", 1)))
    engines = [Speculating(4), Speculating(6)]
    route = router(config, *engines)
    route.generate(0, prompts(2))
    assert route.counts.metrics()["spec/accept_len"] == pytest.approx(1.5)
    route.evaluate(1, [prompt for _, prompt in prompts(2)])
    engines[0].accepted = 0
    engines[0].calls.clear()  # restarted: it counts from 0 again
    route.generate(1, prompts(2))
    assert route.counts.metrics()["spec/accept_len"] == pytest.approx(1 + 6 / 20)


def test_no_accept_length_without_speculation(config: Config) -> None:
    route = router(config, FakeEngine())
    route.generate(0, prompts(1))
    assert "spec/accept_len" not in route.counts.metrics()
