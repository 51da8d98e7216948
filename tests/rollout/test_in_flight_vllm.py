"""What becomes of requests under way when weights change, in a real vLLM engine: `weights.in_flight` drain, abort and keep."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.rollout.child import STATE, EngineChild, config_of
from tests.weights.models import ReferenceTrainer
from tests.weights.test_sync_vllm import sync_of
from vime.rollout.types import GenRequest, GenResult, Sampling

pytestmark = pytest.mark.heavy
TOKENS, REQUESTS, STARTED, END = 60, 16, 5, 1
CLOSE = 2e-5


def begin_rollout(engine: Any, policy: str, requests: list[GenRequest]) -> None:
    """Start generating in a thread of the engine's process; returns when some tokens are there."""
    STATE["before"] = engine.config
    engine.config = replace(engine.config, weights=replace(engine.config.weights, in_flight=policy))
    STATE["thread"] = threading.Thread(target=lambda: STATE.update(results=engine.generate(requests, Sampling())))
    STATE["thread"].start()
    until, states = time.monotonic() + 20, engine._adapter._engine.output_processor.request_states
    while not any(len(state.detokenizer.output_token_ids) >= STARTED for state in list(states.values())):
        assert time.monotonic() < until
        time.sleep(0.0005)
    if policy != "drain":
        engine.pause()  # on a busy machine the answers would be done before the update comes


def end_rollout(engine: Any) -> list[GenResult]:
    STATE["thread"].join(30)
    engine.config = STATE["before"]
    return STATE["results"]


@pytest.fixture
def updated(request: pytest.FixtureRequest, dense_engine: EngineChild, dense_model: Any) -> tuple[list[GenResult], list[np.ndarray], list[np.ndarray]]:
    """Results of a rollout in the midst of which version 0 became version 1; log-probs of each answer under version 0, and under version 1."""
    (trainer,), sync = sync_of([dense_engine], config_of(dense_model))
    sync.push(0)
    requests = [GenRequest(f"0-{group}-0", [3 + group, 5, 7], group, TOKENS) for group in range(REQUESTS)]
    old = ReferenceTrainer(dense_model)
    trainer.change(1, 0.3)
    dense_engine.run(begin_rollout, request.param, requests)
    sync.push(1)
    results = dense_engine.run(end_rollout)
    sync.close()
    sequences = [request.prompt_ids + result.response_ids for request, result in zip(requests, results, strict=True)]
    return results, *([model.logprobs([ids])[0][2:] for ids in sequences] for model in (old, trainer))


def whole(result: GenResult) -> bool:
    """It came to its own end."""
    ended, full = result.response_ids[-1] == END, len(result.response_ids) == TOKENS
    return result.weight_version == 0 and (ended or full) and result.finish_reason == ("stop" if ended else "length")


@pytest.mark.parametrize("updated", ["drain"], indirect=True)
def test_drained_answers_are_whole_and_all_of_the_old_weights(updated: Any) -> None:
    for result, old, _ in zip(*updated, strict=True):
        assert whole(result)
        np.testing.assert_allclose(result.logprobs, old, atol=CLOSE)


@pytest.mark.parametrize("updated", ["abort"], indirect=True)
def test_aborted_answers_keep_what_they_had_of_the_old_weights(updated: Any) -> None:
    cut = [result for result in updated[0] if result.finish_reason == "abort"]
    assert len(cut) > REQUESTS / 4
    for result, old, _ in zip(*updated, strict=True):
        assert whole(result) or (result.finish_reason, result.weight_version) == ("abort", 0)
        np.testing.assert_allclose(result.logprobs, old, atol=CLOSE)
    assert all(STARTED - 1 <= len(result.response_ids) < TOKENS for result in cut)


@pytest.mark.parametrize("updated", ["keep"], indirect=True)
def test_kept_answers_go_on_under_the_new_weights_alone(updated: Any) -> None:
    """From the update on no log-prob depends on anything that the old weights computed, cached keys and values included."""
    kept = 0
    for result, old, new in zip(*updated, strict=True):
        assert whole(result)
        moved = np.abs(result.logprobs - old) > CLOSE
        cut = int(moved.argmax()) if moved.any() else len(moved)  # those that had ended are of the old weights
        assert cut >= STARTED - 1 or not moved.any()
        np.testing.assert_allclose(result.logprobs[cut:], new[cut:], atol=CLOSE)
        kept += cut < len(moved)
    assert kept > REQUESTS / 4
