"""Estimated memory of one device, in bytes: trainer (weights, gradients, optimizer, activations, logits) and engine (weights, cache).

What the numbers leave out (driver context, communicators, allocator slack) is the hardware's `reserved_gib`. An estimate refuses what cannot fit; that it fits
is shown by running.
"""

from __future__ import annotations

from dataclasses import dataclass

from matrix.architecture import Architecture
from matrix.layout import Layout
from matrix.workload import Workload

GIB = 2**30
ENGINE_WORKSPACE = 2 * GIB  # vLLM's largest batch in flight and captured graphs
LOGIT_BYTES = (
    14  # of one token and vocabulary entry: the logits in bfloat16 (2), the two float32 tensors kept for backward and its result (vime/algos/logprobs.py)
)
STATE_BYTES = 4  # recurrent states of linear attention are float32


@dataclass(frozen=True)
class TrainerMemory:
    """Bytes on the fullest trainer device (the pipeline stage that holds most)."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


@dataclass(frozen=True)
class EngineMemory:
    """Bytes on one engine device. `cache` is what one sequence of full length needs; `room` what is left for caches; `wanted` sequences are sent at once."""

    weights: float
    cache: float
    room: float
    wanted: int

    @property
    def total(self) -> float:
        return self.weights + self.cache + ENGINE_WORKSPACE

    @property
    def concurrent(self) -> int:
        """Full-length sequences that fit at once."""
        return int(self.room // self.cache) if self.cache else self.wanted


def trainer_memory(model: Architecture, layout: Layout, work: Workload) -> TrainerMemory:
    """Of the fullest stage.

    Weights, gradients and Adam's states as counted by Rajbhandari et al. 2020 (ZeRO, section 3.1): 2 bytes of weights, 4 of gradients (reduced in float32),
    12 of states (float32 copy and two moments) a parameter in bfloat16; the states divided over the data-parallel ranks by Megatron-Core's distributed
    optimizer (over data × context ranks; experts over their own data-parallel group). Float32 weights need no further copy: 8 bytes of states.
    """
    stages = layout.stages(len(model.layers))
    return max((_stage(model, layout, work, index, len(stages), layers) for index, layers in enumerate(stages)), key=lambda memory: memory.total)


def _stage(model: Architecture, layout: Layout, work: Workload, index: int, count: int, layers: range) -> TrainerMemory:
    first, last = index == 0, index == count - 1
    extra = model.mtp if last and work.mtp else ()
    held = {name: sums[layers.stop] - sums[layers.start] + sum(getattr(layer, name) for layer in extra) for name, sums in model.sums.items()}
    if first:
        held["split"] += model.embedding
        held["whole"] += model.vision
    if last:
        held["split"] += model.head or (model.embedding if not first else 0)  # a tied output layer on another stage is a copy
        held["whole"] += model.final_norm
    dense = held["split"] / layout.tensor + held["whole"]
    experts = held["experts"] / (layout.expert * layout.expert_tensor)
    shards, expert_shards = (layout.data * layout.context, layout.expert_data) if work.distributed_optimizer else (1, 1)
    states = (8 if work.weight_bytes == 4 else 12) * (1.0 - work.offloaded)
    return TrainerMemory(
        weights=work.weight_bytes * (dense + experts),
        gradients=work.gradient_bytes * (dense + experts),
        optimizer=states * (dense / shards + experts / expert_shards),
        activations=_activations(model, layout, work, held, len(layers) + len(extra), in_flight=count - index),
        logits=LOGIT_BYTES * work.microbatch_tokens * model.vocabulary / layout.tensor if last else 0.0,
    )


def _activations(model: Architecture, layout: Layout, work: Workload, held: dict[str, int], layers: int, in_flight: int) -> float:
    """Korthikanti et al. 2022 (section 4, their table 2), written out for gated MLPs, grouped and latent attention and experts, with attention that does not
    keep its matrix (Dao et al. 2022). With full recompute only each layer's input is kept, and one layer is worked out at a time (section 5).
    A pipeline's early stages hold as many micro-batches as stages follow (one forward, one backward; Narayanan et al. 2021, section 2.2)."""
    token = work.weight_bytes * work.microbatch_tokens
    shared = layout.tensor if layout.sequence_parallel else 1
    if not work.recompute:
        return in_flight * token * _widths(model.hidden * layers, held["attention_width"] + held["mlp_width"], held["expert_width"], layout, shared)
    widest = max(_widths(model.hidden, kind.attention_width + kind.mlp_width, kind.expert_width, layout, shared) for kind in model.kinds)
    return token * (in_flight * model.hidden * layers / shared + widest)


def _widths(hidden: int, inner: int, expert: int, layout: Layout, shared: int) -> float:
    """Elements kept of one token: inputs of two norms and of the projections after them, what attention and MLP are computed from, the experts' copies."""
    return 4 * hidden / shared + inner / layout.tensor + expert / (layout.expert_tensor * shared)


def engine_memory(model: Architecture, layout: Layout, work: Workload, device_bytes: float) -> EngineMemory:
    """Of one engine device: weights divided by vLLM's tensor parallelism (norms, routers and latents on each), and the KV cache.

    Cache of one token (Kwon et al. 2023, section 3.1): 2 × layers × heads × head size elements, a head at least on each device; a latent of MLA whole
    (DeepSeek-V2, section 2.1); linear attention keeps one state a sequence.
    """
    tensor = layout.engine_tensor
    extra = model.mtp if work.speculative else ()
    held = {name: sums[-1] + sum(getattr(layer, name) for layer in extra) for name, sums in model.sums.items()}
    parameters = (model.embedding + model.head + held["split"] + held["experts"]) / tensor + model.vision + model.final_norm + held["whole"]
    per_token = held["kv_split"] / min(tensor, model.kv_heads) + held["kv_whole"]
    state = held["state"] * STATE_BYTES / tensor
    weights = work.engine_bytes * parameters
    room = work.cache_bytes if work.cache_bytes is not None else work.utilization * device_bytes - weights - ENGINE_WORKSPACE
    return EngineMemory(weights, work.cache_width * per_token * work.longest + state, room, -(-work.samples // layout.engines))
