"""What vime asks of a vLLM generation. One adapter per generation implements it; nothing else in vime imports vLLM's internals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from vime.errors import UserError
from vime.rollout.types import Sampling

Prompt = Mapping[str, Any]  # "prompt_token_ids" and, with images, "multi_modal_data" and "multi_modal_uuids" (`vime.rollout.pictures`)
BACKEND = "vime"  # the name our weight-transfer engine has in vLLM's registry

OWNED = MappingProxyType(
    {
        "model": "it is `model.path`",
        "tokenizer": "vime tokenizes the prompts with the model's own tokenizer and hands vLLM ids",
        "skip_tokenizer_init": "vime tokenizes the prompts itself",
        "dtype": "it is `rollout.dtype`",
        "seed": "every request has its own, from `seed`",
        "tensor_parallel_size": "it is `rollout.tensor_parallel`",
        "distributed_executor_backend": "vime places the engine's devices itself (`rollout.tensor_parallel`)",
        "data_parallel_size": "engines are replicated by `rollout.engines`",
        "logprobs_mode": "the trainer needs log-probs of the distribution that was sampled from",
        "weight_transfer_config": "weights come through `weights.transport`",
        "worker_extension_cls": "vime's weight receiver sits there",
        "worker_cls": "it belongs to the platform",
    }
)


@dataclass(frozen=True)
class EngineSpec:
    """One engine, before any generation's option names."""

    model_path: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    tensor_parallel: int = 1
    load_weights: bool = True  # False: dummy weights, to be overwritten by the first sync
    eager: bool = True
    sees: bool = False  # the model has a vision tower
    draft_tokens: int = 0  # proposed at once by the model's own draft layers; 0: no speculation
    options: Mapping[str, Any] = field(default_factory=dict)  # the configuration's `vllm:` block, passed through whole


@dataclass(frozen=True)
class Output:
    """A request that ended. `prompt_logprobs` float32[P−1] where asked for: of each prompt id given those before it, at temperature 1. `prompt_ids`: what the
    engine made of the prompt and its images, where it has any."""

    request_id: str
    token_ids: list[int]
    logprobs: np.ndarray | None  # float32[R]
    finish_reason: str | None
    prompt_logprobs: np.ndarray | None = None
    prompt_ids: Sequence[int] | None = None


class VllmAdapter(Protocol):
    """A running engine of one vLLM generation. Every method is called by one thread at a time."""

    generation: str

    def start(self, spec: EngineSpec) -> None:
        """Build the engine. Whatever vLLM raises comes through."""

    def add(self, request_id: str, prompt: Prompt, sampling: Sampling, seed: int | None, max_tokens: int) -> None:
        """Queue one request; order of arrival is order of service."""

    def add_scoring(self, request_id: str, prompt: Prompt) -> None:
        """Queue a teacher-forced request: its `Output.prompt_logprobs` are those of the prompt's ids."""

    def step(self) -> list[Output]:
        """One scheduler step; the requests that ended in it."""

    def speculated(self) -> tuple[int, int]:
        """(drafts, accepted tokens) of speculative decoding since the start; zeros without it."""

    def unfinished(self) -> int:
        """Requests queued or running."""

    def abort(self, request_ids: Sequence[str]) -> list[Output]:
        """End requests now; their outputs so far, with finish reason `abort`."""

    def begin_update(self, *, draft: bool = False) -> None:
        """Open a weight update of the model (or of its draft model) in every worker."""

    def update(self, version: int, base_version: int | None) -> None:
        """Receive and load everything the senders put for `version` (a delta against `base_version`, or whole)."""

    def finish_update(self) -> None:
        """Close the update: the engine computes with the new weights from here on."""

    def abort_update(self) -> None:
        """Leave an update half-way. The weights are undefined after it."""

    def reset_caches(self) -> None:
        """Drop every block and encoding computed under older weights; running requests recompute theirs."""

    def call_workers(self, method: str, *args: Any) -> list[Any]:
        """A method of the worker extension in every worker process; results in rank order."""

    def sleep(self, level: int) -> None:
        """Give device memory back: 1 keeps the weights on the host, 2 drops them. There are no unfinished requests."""

    def wake(self, tags: Sequence[str]) -> None:
        """Take the memory of some of `weights` and `kv_cache` back."""

    def shutdown(self) -> None:
        """Release the engine and its worker processes."""


def check_options(options: Mapping[str, Any]) -> None:
    """Raises `UserError` when the `vllm:` block sets a key that vime owns, with the reason."""
    for key in options:
        name = key.replace("-", "_")
        if name in OWNED:
            raise UserError(f"vllm.{key}: cannot be set: {OWNED[name]}. Remove it.")
