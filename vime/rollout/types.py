"""What goes into an engine and what comes out, and the seed of a request. Nothing here imports torch or vLLM."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vime.data.images import Image
from vime.errors import UserError

Purpose = Literal["train", "eval"]
LOWEST_TEMPERATURE = 0.01  # vLLM clamps lower ones to it
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Sampling:
    """How every request of one call is sampled. `top_k` −1 and `top_p` 1 are off; the model's end-of-sequence ids end a request besides `stop_token_ids`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    purpose: Purpose = "train"

    def check(self) -> None:
        """Raises `UserError` for 0 in training (the answers of a group would all be alike, their advantage 0) and for what vLLM would change in silence."""
        if 0 < self.temperature < LOWEST_TEMPERATURE:
            raise UserError(
                f"temperature: vLLM would sample at {LOWEST_TEMPERATURE} instead of {self.temperature:g} in silence. Set 0 (evaluation only) or more."
            )
        if self.purpose == "train" and self.temperature <= 0:
            why = "every answer of a group would be the same"
            raise UserError(f"rollout.temperature: {self.temperature:g} is refused for training rollouts ({why}). Set it above 0; 1.0 is usual.")


@dataclass(frozen=True)
class GenRequest:
    """One answer to generate; `sample_id` is unique in the run. `prompt_ids` hold every token of `images`. `seed` None: not repeatable."""

    sample_id: str
    prompt_ids: list[int]
    seed: int | None
    max_tokens: int
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, eq=False)
class GenResult:
    """One generated answer.

    `logprobs` float32[R], aligned to `response_ids` [R]: log-probability of each id under the distribution it was sampled from (after temperature, top-k
    and top-p). `finish_reason`: `stop` (an end or stop id, also exactly at the limit), `length`, or `abort`. `weight_version`: the oldest weights any of its
    ids came from.
    """

    sample_id: str
    response_ids: list[int]
    logprobs: np.ndarray
    finish_reason: FinishReason
    weight_version: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with its log-probs inside: each array would travel as a buffer of its own, which costs far more than to copy its few bytes."""
        return unpickled, (self.sample_id, self.response_ids, self.logprobs.astype(np.float32).tobytes(), self.finish_reason, self.weight_version)


def unpickled(sample_id: str, response_ids: list[int], logprobs: bytes, finish_reason: FinishReason, weight_version: int) -> GenResult:
    return GenResult(sample_id, response_ids, np.frombuffer(logprobs, np.float32), finish_reason, weight_version)


def request_seed(run_seed: int, step: int, group: int, sample: int) -> int:
    """Seed of one request, in [0, 2^63): the same for the same four numbers on every machine, unrelated for any other."""
    digest = hashlib.blake2b(f"{run_seed}/{step}/{group}/{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
