"""Values that no plan can be worked out from: groups that are no groups, sizes that are no sizes. All else about a configuration is `check`'s to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from matrix.fragments import Key
from matrix.workload import BYTES

GROUPS: tuple[Key, ...] = (
    *((name,) for name in ("model", "rollout", "train", "parallel", "placement", "megatron", "vllm")),
    *(("megatron", name) for name in ("model", "optimizer", "ddp")),
    ("rollout", "speculative"),
    ("train", "mtp"),
)
SIZES: tuple[Key, ...] = (
    *(("parallel", axis) for axis in ("tensor", "pipeline", "context", "data", "expert", "expert_tensor")),
    *(("rollout", name) for name in ("engines", "tensor_parallel", "prompts_per_step", "samples_per_prompt", "max_prompt_tokens", "max_response_tokens")),
    ("train", "max_tokens_per_microbatch"),
    ("train", "optimizer_steps_per_rollout"),
)
SIZES_OR_NULL: tuple[Key, ...] = (
    ("megatron", "model", "num_layers_in_first_pipeline_stage"),
    ("megatron", "model", "num_layers_in_last_pipeline_stage"),
    ("vllm", "kv_cache_memory_bytes"),
)
NUMBERS: tuple[Key, ...] = (("megatron", "optimizer", "optimizer_offload_fraction"), ("vllm", "gpu_memory_utilization"), ("train", "mtp", "loss_weight"))
ABSENT = object()


def malformed(config: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """Each such value, with its key and what is wanted."""
    for key in GROUPS:
        value = _at(config, key)
        if value is not ABSENT and not isinstance(value, Mapping):
            yield key, f"{'.'.join(key)} is {value!r}: a group of keys is wanted"
    for key in (*SIZES, *SIZES_OR_NULL):
        value = _at(config, key)
        if value is ABSENT or (value is None and key in SIZES_OR_NULL):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield key, f"{'.'.join(key)} is {value!r}: a whole number above 0 is wanted"
    for key in NUMBERS:
        value = _at(config, key)
        if value is not ABSENT and (not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1):
            yield key, f"{'.'.join(key)} is {value!r}: a number between 0 and 1 is wanted"
    for key, choices in ((("model", "dtype"), tuple(BYTES)), (("rollout", "dtype"), (*BYTES, None))):
        value = _at(config, key)
        if value is not ABSENT and value not in choices:
            yield key, f"{'.'.join(key)} is {value!r}: one of {', '.join(str(choice) for choice in BYTES)} is wanted"


def _at(config: Mapping[str, Any], key: Key) -> Any:
    """The value at a key path, ABSENT where there is none or where something above it is no group."""
    node: Any = config
    for part in key:
        if not isinstance(node, dict) or part not in node:
            return ABSENT
        node = node[part]
    return node
