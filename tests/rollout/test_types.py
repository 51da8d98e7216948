"""Request seeds and sampling settings."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

from vime.errors import UserError
from vime.rollout.types import GenResult, Sampling, request_seed


def test_the_seed_of_a_request_is_pinned() -> None:
    """A change here changes every run's samples: a new science, not a refactoring."""
    assert request_seed(0, 0, 0, 0) == 5854343820274218872
    assert request_seed(7, 3, 41, 15) == 1133307889007280027


def test_seeds_are_unique_over_a_run_and_fit_int64() -> None:
    seeds = {request_seed(run, step, group, sample) for run, step, group, sample in itertools.product(range(3), range(20), range(16), range(16))}
    assert len(seeds) == 3 * 20 * 16 * 16
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_neighbouring_numbers_cannot_be_confused() -> None:
    assert request_seed(1, 11, 1, 1) != request_seed(11, 1, 1, 1) != request_seed(1, 1, 11, 1)


def test_temperature_0_is_refused_for_training_and_allowed_for_evaluation() -> None:
    with pytest.raises(UserError, match=r"rollout.temperature: 0 is refused for training rollouts .* Set it above 0; 1.0 is usual."):
        Sampling(temperature=0.0).check()
    Sampling(temperature=0.0, purpose="eval").check()


def test_a_temperature_that_vllm_would_raise_in_silence_is_refused() -> None:
    with pytest.raises(UserError, match=r"vLLM would sample at 0.01 instead of 0.001"):
        Sampling(temperature=0.001).check()


def test_a_result_travels_whole_and_without_a_buffer_of_its_own() -> None:
    """An engine hands back hundreds of them a step."""
    sent = GenResult("3-1-0", [5, 7, 2], np.array([-0.5, -1.25, -3e-8], np.float32), "stop", 4)
    buffers: list[pickle.PickleBuffer] = []
    got = pickle.loads(pickle.dumps(sent, protocol=5, buffer_callback=buffers.append))
    assert not buffers
    assert (got.sample_id, got.response_ids, got.finish_reason, got.weight_version) == ("3-1-0", [5, 7, 2], "stop", 4)
    assert got.logprobs.dtype == np.float32
    assert got.logprobs.tobytes() == sent.logprobs.tobytes()
