"""What 0.23 and 0.32 have in common: the synchronous `LLMEngine`. Both generations' packages are checked against every call here (`contracts.py`)."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from vime.errors import UserError
from vime.rollout.types import Sampling
from vime.rollout.vllm_compat.base import BACKEND, EngineSpec, Output, Prompt, check_options

IMAGES = 8  # of one prompt, unless `vllm.limit_mm_per_prompt` says otherwise
DRAFTS, ACCEPTED = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"


class LLMEngineAdapter:
    """The part of `VllmAdapter` that does not touch weights. Requests are served in the order they were added, so a run can be repeated."""

    worker_module: str  # import path of the generation's worker side; its `WorkerExtension` is mixed into vLLM's worker class

    def start(self, spec: EngineSpec) -> None:
        import importlib

        from vllm.config.weight_transfer import WeightTransferConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        importlib.import_module(self.worker_module)  # registers our backend where the engine core shares this process
        self._draft_tokens = spec.draft_tokens
        arguments = engine_arguments(spec, f"{self.worker_module}.WorkerExtension")
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments, weight_transfer_config=WeightTransferConfig(backend=BACKEND)))

    def add(self, request_id: str, prompt: Prompt, sampling: Sampling, seed: int | None, max_tokens: int) -> None:
        params = copy.copy(checked_params(sampling))
        params.seed, params.max_tokens = seed, max_tokens
        self._engine.add_request(request_id, dict(prompt), params)

    def add_scoring(self, request_id: str, prompt: Prompt) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
        )
        self._engine.add_request(request_id, dict(prompt), params)

    def step(self) -> list[Output]:
        return [to_output(item) for item in self._engine.step() if item.finished]

    def speculated(self) -> tuple[int, int]:
        if not self._draft_tokens:
            return 0, 0
        found = {metric.name: int(metric.value) for metric in self._engine.get_metrics() if metric.name in (DRAFTS, ACCEPTED)}
        return found.get(DRAFTS, 0), found.get(ACCEPTED, 0)

    def unfinished(self) -> int:
        return self._engine.get_num_unfinished_requests()

    def abort(self, request_ids: Sequence[str]) -> list[Output]:
        partial = [output for request_id in request_ids for output in partial_outputs(self._engine.output_processor, request_id)]
        self._engine.abort_request(list(request_ids))
        return partial

    def reset_caches(self) -> None:
        """Raises `RuntimeError` when vLLM keeps a block: a later request would read what older weights computed."""
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("vLLM could not reset its prefix cache (blocks are still in use)")
        self._engine.reset_mm_cache()
        self._engine.reset_encoder_cache()

    def abort_update(self) -> None:
        self.call_workers("vime_abort_update")

    def call_workers(self, method: str, *args: Any) -> list[Any]:
        return self._engine.collective_rpc(method, args=args)

    def sleep(self, level: int) -> None:
        self._engine.sleep(level=level)

    def wake(self, tags: Sequence[str]) -> None:
        self._engine.wake_up(tags=list(tags))

    def shutdown(self) -> None:
        self._engine.engine_core.shutdown()


def engine_arguments(spec: EngineSpec, extension: str) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs`: vime's defaults, then the `vllm:` block, then what vime owns."""
    check_options(spec.options)
    if spec.draft_tokens and "speculative_config" in {key.replace("-", "_") for key in spec.options}:
        raise UserError("vllm.speculative_config: cannot be set beside rollout.speculative. Remove one of them.")
    defaults = {
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "enforce_eager": spec.eager,
        "disable_log_stats": not spec.draft_tokens,  # drafts and accepted tokens are counted there
        "load_format": "auto" if spec.load_weights else "dummy",
        **({"limit_mm_per_prompt": {"image": IMAGES, "video": 0}} if spec.sees else {}),
    }
    owned = {
        "model": spec.model_path,
        "skip_tokenizer_init": not spec.sees,  # where there are images, Hugging Face's processor wants the tokenizer beside it
        "dtype": spec.dtype,
        "seed": 0,
        "tensor_parallel_size": spec.tensor_parallel,
        "distributed_executor_backend": "mp" if spec.tensor_parallel > 1 else "uni",  # in a placement group vLLM would place workers by Ray once more
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": extension,
        **({"speculative_config": {"method": "mtp", "num_speculative_tokens": spec.draft_tokens}} if spec.draft_tokens else {}),
    }
    return defaults | {key.replace("-", "_"): value for key, value in spec.options.items()} | owned


@functools.lru_cache(maxsize=4)
def checked_params(sampling: Sampling) -> Any:
    """vLLM's parameters for `sampling`, to be copied for each request: building and checking them takes it 6 µs, a copy less than one."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        stop_token_ids=list(sampling.stop_token_ids),
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def to_output(item: Any) -> Output:
    """From vLLM's `RequestOutput` with flat log-probs."""
    answer = item.outputs[0]
    scores = first_of_each(item.prompt_logprobs)
    return Output(item.request_id, list(answer.token_ids), first_of_each(answer.logprobs), answer.finish_reason, scores, item.prompt_token_ids)


def first_of_each(flat: Any) -> np.ndarray | None:
    """float32: the sampled (or given) id's log-prob of every position that has one; vLLM puts it first, then the most likely ids."""
    if flat is None:
        return None
    values = np.asarray(flat.logprobs, dtype=np.float32)
    if flat.start_indices == list(range(len(values))):  # one of each
        return values
    starts, ends = np.asarray(flat.start_indices, dtype=np.int64), np.asarray(flat.end_indices, dtype=np.int64)
    return values[starts[ends > starts]]


def partial_outputs(processor: Any, request_id: str) -> list[Output]:
    """What a request has generated so far, from vLLM's own request state (there is no public way to end a request and keep its ids)."""
    states = [processor.request_states[internal] for internal in processor.external_req_ids.get(request_id, []) if internal in processor.request_states]
    return [Output(request_id, list(state.detokenizer.output_token_ids), first_of_each(state.logprobs_processor.logprobs), "abort") for state in states]
