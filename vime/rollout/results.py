"""From vLLM's outputs to results: every id has a finite log-prob, or the sample is named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from vime.errors import RunError
from vime.rollout.types import GenResult
from vime.rollout.vllm_compat.base import Output


def check_unique(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise RunError("rollout", f"sample {name} was requested twice")
        seen.add(name)


def to_results(outputs: Sequence[Output], versions: Sequence[int], stop_ids: set[int]) -> list[GenResult]:
    """Raises `RunError` naming the sample when a log-prob is missing or not finite."""
    check_logprobs(outputs)
    return [to_result(output, version, stop_ids) for output, version in zip(outputs, versions, strict=True)]


def check_logprobs(outputs: Sequence[Output]) -> None:
    """One finite log-prob for each id. The values are looked at all together: numpy takes as long for one answer's as for everybody's."""
    values: list[np.ndarray] = []
    for output in outputs:
        found = 0 if output.logprobs is None else len(output.logprobs)
        if output.logprobs is None or found != len(output.token_ids):
            raise RunError("rollout", f"sample {output.request_id}: vLLM returned {found} log-probs for {len(output.token_ids)} ids")
        values.append(output.logprobs)
    if values and not np.isfinite(np.concatenate(values)).all():
        output, logprobs = next((o, v) for o, v in zip(outputs, values, strict=True) if not np.isfinite(v).all())
        where = int(np.flatnonzero(~np.isfinite(logprobs))[0])
        raise RunError("rollout", f"sample {output.request_id}: the log-prob of id {output.token_ids[where]} at position {where} is {logprobs[where]}")


def to_result(output: Output, version: int, stop_ids: set[int]) -> GenResult:
    """An output whose log-probs were checked."""
    ids, logprobs = output.token_ids, output.logprobs
    assert logprobs is not None
    if output.finish_reason == "abort":
        return GenResult(output.request_id, ids, logprobs, "abort", version)
    if not ids:
        raise RunError("rollout", f"sample {output.request_id}: vLLM ended it ({output.finish_reason}) with no ids")
    return GenResult(output.request_id, ids, logprobs, "stop" if ids[-1] in stop_ids else "length", version)


def scored(output: Output, ids: Sequence[int]) -> np.ndarray:
    values = output.prompt_logprobs
    if values is None or len(values) != len(ids) - 1:
        raise RunError("engine log-probs", f"vLLM returned {0 if values is None else len(values)} log-probs for a sequence of {len(ids)} ids")
    return values
