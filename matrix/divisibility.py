"""Whether a layout divides a model and a batch: what vime, Megatron-Core and vLLM refuse on the machine, said before a machine is booked."""

from __future__ import annotations

from collections.abc import Iterator

from matrix.architecture import Architecture
from matrix.fragments import Key
from matrix.layout import Layout
from matrix.workload import Workload

Fault = tuple[Key, str]  # the key of the configuration to change, and what is wrong with it

VOCABULARY_MULTIPLE = 64  # what vLLM pads a vocabulary to, times its tensor-parallel ranks


def layout_faults(model: Architecture, layout: Layout, work: Workload) -> Iterator[Fault]:
    """Everything about a layout that cannot work, each with the key and the numbers."""
    yield from _trainer(model, layout)
    yield from _experts(model, layout)
    yield from _engines(model, layout)
    yield from _batch(model, layout, work)


def _trainer(model: Architecture, layout: Layout) -> Iterator[Fault]:
    tensor = layout.tensor
    for what, count in (("attention heads", model.heads), *(() if model.latent else (("key/value heads", model.kv_heads),))):
        if count % tensor:
            yield ("parallel", "tensor"), f"parallel.tensor {tensor} does not divide the model's {count} {what}: choose a divisor of {count}"
    if model.ffn % tensor and not model.experts:
        yield ("parallel", "tensor"), f"parallel.tensor {tensor} does not divide the intermediate size {model.ffn}"
    if layout.sequence_parallel and tensor == 1:
        yield ("parallel", "sequence_parallel"), "parallel.sequence_parallel splits the sequence over tensor-parallel ranks: parallel.tensor is 1"
    try:
        layout.stages(len(model.layers))
    except ValueError as error:
        yield (
            ("parallel", "pipeline"),
            f"{error}: choose a divisor of {len(model.layers)}, or set megatron.model.num_layers_in_first_pipeline_stage and …_last_…",
        )


def _experts(model: Architecture, layout: Layout) -> Iterator[Fault]:
    expert, expert_tensor = layout.expert, layout.expert_tensor
    if not model.experts:
        if expert > 1 or expert_tensor > 1:
            yield ("parallel", "expert"), f"parallel.expert {expert} and expert_tensor {expert_tensor}: the model has no experts: use 1"
        return
    if model.experts % expert:
        yield ("parallel", "expert"), f"parallel.expert {expert} does not divide the model's {model.experts} experts"
    ranks, wanted = layout.tensor * layout.context * layout.data, expert * expert_tensor
    if ranks % wanted:
        yield (
            ("parallel", "expert"),
            f"parallel.expert {expert} × expert_tensor {expert_tensor} = {wanted} does not divide the {ranks} ranks of a stage (tensor × context × data)",
        )
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield ("parallel", "sequence_parallel"), f"parallel.tensor {layout.tensor} with routed experts needs parallel.sequence_parallel: true"


def _engines(model: Architecture, layout: Layout) -> Iterator[Fault]:
    tensor, key = layout.engine_tensor, ("rollout", "tensor_parallel")
    if model.heads % tensor:
        yield key, f"rollout.tensor_parallel {tensor} does not divide the model's {model.heads} attention heads"
    if not model.latent and model.kv_heads % tensor and tensor % model.kv_heads:
        yield key, f"rollout.tensor_parallel {tensor} and the model's {model.kv_heads} key/value heads: one must divide the other"
    if layout.colocate and layout.trainer_devices != layout.engine_devices:
        yield (
            ("rollout", "engines"),
            f"colocate shares each device between one trainer rank and one engine rank: {layout.trainer_devices} trainer ranks, "
            f"{layout.engine_devices} engine devices",
        )


def _batch(model: Architecture, layout: Layout, work: Workload) -> Iterator[Fault]:
    samples, parts = work.samples, work.optimizer_steps
    if samples % parts:
        yield ("train", "optimizer_steps_per_rollout"), f"{parts} optimizer steps do not divide the {samples} samples of a step"
    elif samples // parts < layout.data:
        yield ("parallel", "data"), f"{layout.data} data-parallel ranks share {samples // parts} samples of an optimizer step: at least one each is needed"
    if work.microbatch_tokens * layout.context < work.longest:
        over = f" on each of {layout.context} context-parallel ranks" if layout.context > 1 else ""
        yield (
            ("train", "max_tokens_per_microbatch"),
            f"train.max_tokens_per_microbatch {work.microbatch_tokens}{over} cannot hold one sample of {work.longest} tokens (prompt + response)",
        )
    if work.longest > model.max_positions:
        yield (
            ("rollout", "max_response_tokens"),
            f"prompt and response take {work.longest} positions, the model has {model.max_positions} (max_position_embeddings)",
        )


def vocabulary_note(model: Architecture, layout: Layout) -> str | None:
    """How far the trainer pads the vocabulary so that tensor-parallel ranks share it evenly, or None."""
    padding = -model.vocabulary % layout.tensor
    return f"vocabulary of {model.vocabulary} padded by {padding} for parallel.tensor {layout.tensor}" if padding else None
