"""How much one step of a configuration asks of the devices: samples, tokens, number formats, and what is kept, recomputed or moved to the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matrix.vime_schema import VimeSchema

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Workload:
    """Sizes in tokens and samples; `weight_bytes` and `engine_bytes` of one parameter in trainer and engine."""

    samples: int  # of a step, all engines together
    prompt_tokens: int
    response_tokens: int
    microbatch_tokens: int  # of one rank
    optimizer_steps: int
    weight_bytes: int
    engine_bytes: int
    cache_width: int  # bytes of one cached element
    gradient_bytes: int  # vime reduces gradients in float32 unless megatron.ddp.grad_reduce_in_fp32 is false
    distributed_optimizer: bool
    offloaded: float  # share of the optimizer's state that lies on the host
    recompute: bool
    mtp: bool  # whether the multi-token-prediction layers are trained
    speculative: bool  # whether the engine holds a draft of the same checkpoint
    utilization: float  # share of a device that vLLM may take
    cache_bytes: int | None  # what vLLM is told to take for its cache, instead
    release: bool  # colocated trainer and engine give their memory back for each other

    @property
    def longest(self) -> int:
        return self.prompt_tokens + self.response_tokens


def read_workload(config: Mapping[str, Any], vime: VimeSchema, utilization: float, can_release: bool) -> Workload:
    """The workload of a composed configuration. `utilization`: vLLM's default in the hardware's version; `can_release`: whether its engine can sleep."""
    defaults = vime.defaults

    def value(*key: str) -> Any:
        node: Any = config
        for part in key:
            node = node.get(part) if isinstance(node, dict) else None
        return defaults[key] if node is None else node

    megatron, vllm = config.get("megatron", {}), config.get("vllm", {})
    optimizer, dtype = megatron.get("optimizer", {}), value("model", "dtype")
    half_gradients = megatron.get("ddp", {}).get("grad_reduce_in_fp32") is False and dtype != "float32"
    offload = optimizer.get("optimizer_offload_fraction", 0.0) if optimizer.get("optimizer_cpu_offload") else 0.0
    return Workload(
        samples=value("rollout", "prompts_per_step") * value("rollout", "samples_per_prompt"),
        prompt_tokens=value("rollout", "max_prompt_tokens"),
        response_tokens=value("rollout", "max_response_tokens"),
        microbatch_tokens=value("train", "max_tokens_per_microbatch"),
        optimizer_steps=value("train", "optimizer_steps_per_rollout"),
        weight_bytes=BYTES[dtype],
        engine_bytes=1 if vllm.get("quantization") else BYTES[value("rollout", "dtype") or dtype],  # the quantizations declared here are of 8 bits
        cache_width=BYTES[value("rollout", "dtype") or dtype],
        gradient_bytes=2 if half_gradients else 4,
        distributed_optimizer=value("train", "distributed_optimizer"),
        offloaded=offload,
        recompute=value("train", "recompute") == "full",
        mtp=value("train", "mtp", "loss_weight") > 0,
        speculative=value("rollout", "speculative", "method") == "mtp",
        utilization=vllm.get("gpu_memory_utilization", utilization),
        cache_bytes=vllm.get("kv_cache_memory_bytes"),
        release=can_release and config.get("placement", {}).get("release_memory", "auto") != "never",
    )
