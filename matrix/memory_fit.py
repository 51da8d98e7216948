"""Whether a cell fits its devices, by how much it does not, and which changes would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from matrix.architecture import Architecture
from matrix.divisibility import Fault, layout_faults
from matrix.hardware_types import Hardware
from matrix.layout import Layout
from matrix.memory import ENGINE_WORKSPACE, GIB, EngineMemory, TrainerMemory, engine_memory, trainer_memory
from matrix.workload import Workload

Change = tuple[str, Layout, Workload]


def memory_faults(model: Architecture, layout: Layout, work: Workload, hardware: Hardware) -> list[Fault]:
    """What does not fit on one device of the hardware, each with the numbers and the changes that would do."""
    return [(key, f"{message}. {_advice(model, layout, work, hardware)}") for key, message in _overruns(model, layout, work, hardware)]


def _overruns(model: Architecture, layout: Layout, work: Workload, hardware: Hardware) -> Iterator[Fault]:
    assert hardware.device_memory_gib is not None
    device = hardware.device_memory_gib * GIB
    usable = device - hardware.reserved_gib * GIB
    trainer, engine = trainer_memory(model, layout, work), engine_memory(model, layout, work, device)
    resident = trainer.weights + engine.weights if work.release else trainer.total + engine.total
    if trainer.total > usable:
        yield (
            ("parallel",),
            f"training needs {_gib(trainer.total)} of {_gib(usable)} GiB a device ({trainer_text(trainer)}): {_gib(trainer.total - usable)} too much",
        )
    if engine.cache > engine.room:
        short = engine.cache - engine.room
        yield (
            ("rollout", "tensor_parallel"),
            f"the engine's weights ({_gib(engine.weights)} GiB) and workspace leave {_gib(max(0.0, engine.room))} GiB a device for the cache; one sequence of "
            f"{work.longest} tokens needs {_gib(engine.cache)}: {_gib(short)} too little",
        )
    if layout.colocate and trainer.total <= usable and resident > usable:
        yield (
            ("placement", "mode"),
            f"trainer and engine together need {_gib(resident)} of {_gib(usable)} GiB a device "
            f"({'while weights go over' if work.release else 'neither gives its memory back'}): {_gib(resident - usable)} too much",
        )


def trainer_text(memory: TrainerMemory) -> str:
    parts = ("weights", "gradients", "optimizer", "activations", "logits")
    return ", ".join(f"{name} {_gib(getattr(memory, name))}" for name in parts)


def engine_text(memory: EngineMemory) -> str:
    return f"weights {_gib(memory.weights)}, workspace {_gib(ENGINE_WORKSPACE)}, cache {_gib(memory.cache)} a sequence, {memory.concurrent} at once"


def _gib(nbytes: float) -> str:
    return f"{nbytes / GIB:.1f}"


def _advice(model: Architecture, layout: Layout, work: Workload, hardware: Hardware) -> str:
    """The changes, one at a time and then two together, after which nothing overruns."""
    single = list(_changes(model, layout, work))
    fitting = [name for name, other, load in single if _fits(model, other, load, hardware)]
    if not fitting:
        for first, other, load in single:
            pairs = [f"{first} and {second}" for second, both, loads in _changes(model, other, load) if _fits(model, both, loads, hardware)]
            fitting += pairs[: 2 - len(fitting)] if len(fitting) < 2 else []
    return f"It fits with {'; or '.join(fitting)}" if fitting else "No single change is enough: take more devices"


def _fits(model: Architecture, layout: Layout, work: Workload, hardware: Hardware) -> bool:
    room = hardware.max_nodes * hardware.devices_per_node
    if layout.devices > room or max(layout.tensor, layout.engine_tensor) > hardware.devices_per_node:
        return False
    return not any(layout_faults(model, layout, work)) and not any(_overruns(model, layout, work, hardware))


def _changes(model: Architecture, layout: Layout, work: Workload) -> Iterator[Change]:
    if not work.recompute:
        yield "train.recompute: full", layout, replace(work, recompute=True)
    if not work.offloaded:
        yield "megatron.optimizer.optimizer_cpu_offload: true (optimizer_offload_fraction: 1.0)", layout, replace(work, offloaded=1.0)
    if work.microbatch_tokens * layout.context > work.longest:
        least = -(-work.longest // layout.context)
        yield f"train.max_tokens_per_microbatch: {least}", layout, replace(work, microbatch_tokens=least)
    yield f"rollout.tensor_parallel: {2 * layout.engine_tensor}", _together(replace(layout, engine_tensor=2 * layout.engine_tensor)), work
    for axis in ("tensor", "pipeline", "context", "data"):
        size = 2 * getattr(layout, axis)
        grown = replace(layout, **{axis: size}, sequence_parallel=layout.sequence_parallel or (axis == "tensor" and bool(model.experts)))
        yield f"parallel.{axis}: {size}", _together(grown), work
    if model.experts:
        yield f"parallel.expert: {2 * layout.expert}", replace(layout, expert=2 * layout.expert), work


def _together(layout: Layout) -> Layout:
    """A colocated layout with as many engines as its devices carry."""
    return replace(layout, engines=max(1, layout.trainer_devices // layout.engine_tensor)) if layout.colocate else layout
