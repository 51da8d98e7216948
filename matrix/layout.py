"""Where a run's processes lie: parallel axes of the trainer, the engines, and the devices both take. Read from a composed configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matrix.fragments import Key
from matrix.vime_schema import VimeSchema


@dataclass(frozen=True)
class Layout:
    """Ranks of each axis. `engines` replicas of `engine_tensor` devices generate; with `engine_expert` each spreads its experts over its devices."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    data: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence_parallel: bool = False
    first_stage: int | None = None  # layers of an uneven pipeline's ends
    last_stage: int | None = None
    engines: int = 1
    engine_tensor: int = 1
    engine_expert: bool = False
    colocate: bool = False

    @cached_property
    def trainer_devices(self) -> int:
        return self.tensor * self.pipeline * self.context * self.data

    @cached_property
    def engine_devices(self) -> int:
        return self.engines * self.engine_tensor

    @property
    def devices(self) -> int:
        """Of one run: trainer ranks and engine devices side by side, or on the same devices when colocated."""
        return max(self.trainer_devices, self.engine_devices) if self.colocate else self.trainer_devices + self.engine_devices

    @property
    def expert_data(self) -> int:
        """Ranks that hold the same experts: what is left of a pipeline stage's ranks (Megatron-Core's expert data-parallel group)."""
        return max(1, self.tensor * self.context * self.data // (self.expert * self.expert_tensor))

    def stages(self, layers: int) -> list[range]:
        """The layers of each pipeline stage, as Megatron-Core cuts them. Raises ValueError, with the numbers, where that leaves a part of a layer."""
        ends = [size for size in (self.first_stage, self.last_stage) if size is not None]
        middle, left = self.pipeline - len(ends), layers - sum(ends)
        if middle < 0 or (middle and (left <= 0 or left % middle)) or (not middle and left):
            fixed = f" {left} after the ends' {ends}" if ends else f" {layers}"
            raise ValueError(f"parallel.pipeline {self.pipeline}:{fixed} layers do not divide over {max(middle, 0)} stages")
        sizes = [left // middle] * middle if middle else []
        sizes = ([self.first_stage] if self.first_stage is not None else []) + sizes + ([self.last_stage] if self.last_stage is not None else [])
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def nodes(self, per_node: int) -> int:
        return -(-self.devices // per_node)


def read_layout(config: Mapping[str, Any], vime: VimeSchema) -> Layout:
    """The layout of a composed configuration; what it does not say has vime's default."""
    parallel, rollout, placement = (config.get(name, {}) for name in ("parallel", "rollout", "placement"))

    def value(group: Mapping[str, Any], key: Key) -> Any:
        return group.get(key[1], vime.defaults[key])

    model = config.get("megatron", {}).get("model", {})
    axes = {axis: value(parallel, ("parallel", axis)) for axis in ("tensor", "pipeline", "context", "data", "expert", "expert_tensor", "sequence_parallel")}
    return Layout(
        **axes,
        first_stage=model.get("num_layers_in_first_pipeline_stage"),
        last_stage=model.get("num_layers_in_last_pipeline_stage"),
        engines=value(rollout, ("rollout", "engines")),
        engine_tensor=value(rollout, ("rollout", "tensor_parallel")),
        engine_expert=bool(config.get("vllm", {}).get("enable_expert_parallel", False)),
        colocate=value(placement, ("placement", "mode")) == "colocate",
    )


def devices_needed(config: Mapping[str, Any], vime: VimeSchema) -> int:
    """Devices of one run of a configuration."""
    return read_layout(config, vime).devices
