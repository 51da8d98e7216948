"""What travels through a run: a prompt, and one sampled answer to it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from vime.data.images import Image
from vime.errors import RunError

FinishReason = Literal["stop", "length", "abort"]

# A log-probability is at most 0; float32 rounding of a near-certain token may leave it a hair above.
LOGPROB_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt before tokenization. `place` says where it came from, for messages: `prompts.jsonl:12` or `task spell_backward, item 3`."""

    prompt: str | list[dict[str, Any]]  # text, or chat messages ({"role", "content"})
    label: Any
    metadata: dict[str, Any]
    place: str
    images: tuple[str | bytes, ...] = ()  # files, or the bytes of some; `<image>` in the prompt says where each belongs


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine gets it.

    `prompt_id` is its position in the pool; `text` is what was tokenized (after the chat template, if one is used); `ids` includes what the
    tokenizer puts in front (BOS), and every token of its images; `label` is the reference answer as the reward expects it.
    """

    prompt_id: int
    text: str
    ids: list[int]
    label: Any
    metadata: dict[str, Any] = field(default_factory=dict)
    images: tuple[Image, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two prompts the same question: the text and the images."""
        return (self.text, *(image.digest for image in self.images))


@dataclass(slots=True, eq=False)
class Sample:
    """One answer. R is the number of response ids, the end mark included when the engine generated it."""

    sample_id: str  # "<step>-<group>-<index>"
    group_id: int  # consumption number of the prompt in the run
    index: int  # in the group
    prompt: Prompt
    response_ids: list[int]
    engine_logprobs: np.ndarray  # float32[R], of the distribution each id was sampled from; filler 0 where the mask is 0
    loss_mask: np.ndarray  # uint8[R], 1 only where the engine generated the id
    finish_reason: FinishReason
    weight_version: int
    text: str = ""  # `decode_response` of response_ids
    reward: float | None = None
    reward_error: str | None = None

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut at the token limit before its end mark."""
        return self.finish_reason == "length"

    def validate(self) -> None:
        """Raise `RunError` naming the sample when its fields do not describe the same positions or hold an impossible value."""
        for problem in (self.identity_problem(), self.length_problem(), self._value_problem()):
            if problem:
                raise RunError("rollout", f"sample {self.sample_id}: {problem}")

    def identity_problem(self) -> str | None:
        if not self.sample_id.endswith(f"-{self.group_id}-{self.index}"):
            return f"its id does not end in its group {self.group_id} and index {self.index}"
        if self.finish_reason not in ("stop", "length", "abort"):
            return f"unknown finish reason {self.finish_reason!r}"
        if not self.response_ids and self.finish_reason != "abort":
            return "it has no response ids"
        return None

    def length_problem(self) -> str | None:
        n = len(self.response_ids)
        if self.engine_logprobs.shape != (n,):
            return f"{n} response ids but log-probs of shape {self.engine_logprobs.shape}"
        if self.loss_mask.shape != (n,):
            return f"{n} response ids but a loss mask of shape {self.loss_mask.shape}"
        if self.engine_logprobs.dtype != np.float32 or self.loss_mask.dtype != np.uint8:
            return f"log-probs are {self.engine_logprobs.dtype} and the mask {self.loss_mask.dtype}, not float32 and uint8"
        return None

    def _value_problem(self) -> str | None:
        if (self.loss_mask > 1).any():  # uint8: checked above
            return "its loss mask holds values other than 0 and 1"
        good = (self.engine_logprobs > -np.inf) & (self.engine_logprobs <= LOGPROB_ROUNDING)  # NaN is neither
        if not good.all():
            position = int(good.argmin())
            return f"the log-prob of response position {position} is {self.engine_logprobs[position]}: missing, not finite or above 0"
        if self.reward is not None and not math.isfinite(self.reward):
            return f"its reward is {self.reward}"
        if self.reward is not None and self.reward_error is not None:
            return f"it has both a reward ({self.reward}) and a reward error ({self.reward_error})"
        return None


def validate_all(samples: Sequence[Sample]) -> None:
    """`validate` of each; their values are looked at all together, which costs numpy as much as those of one."""
    if not samples:
        return
    lengths_agree = not any(sample.identity_problem() or sample.length_problem() for sample in samples)
    if lengths_agree:
        masks, logprobs = (np.concatenate([getattr(sample, name) for sample in samples]) for name in ("loss_mask", "engine_logprobs"))
        if masks.max(initial=0) <= 1 and ((logprobs > -np.inf) & (logprobs <= LOGPROB_ROUNDING)).all() and all(s.reward is None for s in samples):
            return
    for sample in samples:
        sample.validate()


def settle_finish_reason(response_ids: list[int], reported: str, end_ids: Collection[int]) -> str:
    """The finish reason by what the answer holds: an end mark generated exactly at the token limit is `stop`, never `length`."""
    return "stop" if reported == "length" and response_ids and response_ids[-1] in end_ids else reported
