"""What runs inside vLLM's worker processes in every generation: the loader, and the methods that `collective_rpc` reaches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, get_layerwise_info
from vllm.platforms import current_platform

from vime.errors import RunError
from vime.platforms import registry
from vime.rollout.vllm_compat.dummy import keep_buffers
from vime.weights.connection import Connection
from vime.weights.encodings import wire_dtype
from vime.weights.plan import STAGE, Box
from vime.weights.receiver import Received, WeightReceiver

if TYPE_CHECKING:
    from vime.platforms.base import Platform

Load = Callable[[list[tuple[str, torch.Tensor]]], Any]


def platform() -> Platform:
    """vime's platform of this worker: the one vLLM itself runs on."""
    return registry.for_device(current_platform.device_type)


class LayerwiseLoader:
    """Loads into a model that is in vLLM's layer-wise reload. vLLM buffers the tensors of a layer until the layer is complete.

    `layout`, where given, is filled with the box of each tensor that this worker reads, as seen while it loads whole tensors (one call of vLLM a tensor).
    """

    def __init__(self, load_weights: Load, model: Any, layout: dict[str, Box] | None = None):
        self.load_weights, self.model, self.layout = load_weights, model, layout

    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        if self.layout is None:
            if tensors:
                self.load_weights(list(tensors))
            return
        for name, tensor in tensors:
            with ReadRecorder(tensor) as recorder:
                self.load_weights([(name, tensor)])
            if recorder.box is not None:
                self.layout[name] = recorder.box

    def settle(self, buffer: torch.Tensor) -> None:
        first, last = buffer.data_ptr(), buffer.data_ptr() + buffer.numel()
        for layer in self.model.modules():
            for _, bound in get_layerwise_info(layer).loaded_weights:
                for name, value in bound.arguments.items():
                    if isinstance(value, torch.Tensor) and not value.is_meta and first <= value.data_ptr() < last:
                        bound.arguments[name] = value.clone()


class ReadRecorder(TorchDispatchMode):
    """Records which box of a whole tensor is copied from: what this worker needs of it. `box` stays None when nothing is copied (another worker's expert).

    Copies from elsewhere (the layer is completed in the same call) do not count, unless there are no others: then the loader transforms the tensor first,
    and all of it is needed.
    """

    def __init__(self, tensor: torch.Tensor):
        super().__init__()
        self.tensor = tensor
        self.seen: Box | None = None
        self.elsewhere = False

    @property
    def box(self) -> Box | None:
        return tuple((0, extent) for extent in self.tensor.shape) if self.seen is None and self.elsewhere else self.seen

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.copy_.default and isinstance(args[1], torch.Tensor) and args[1].numel():
            box = box_read(self.tensor, args[1])
            self.elsewhere |= box is None
            self.seen = self.seen if box is None else union(self.seen, box)
        return func(*args, **(kwargs or {}))


def box_read(whole: torch.Tensor, part: torch.Tensor) -> Box | None:
    """The box of `whole` (contiguous) that the view `part` covers; None when `part` is no plain view of it."""
    offset = (part.data_ptr() - whole.data_ptr()) // whole.element_size() if not part.is_meta else -1
    if not 0 <= offset < whole.numel() or part.dtype != whole.dtype:
        return None
    extents = {stride: extent for stride, extent in zip(part.stride(), part.shape, strict=True) if extent > 1}
    if not extents.keys() <= set(whole.stride()):
        return None
    starts = [offset // stride % extent for stride, extent in zip(whole.stride(), whole.shape, strict=True)]
    return tuple((start, start + extents.get(stride, 1)) for start, stride in zip(starts, whole.stride(), strict=True))


def union(left: Box | None, right: Box) -> Box:
    """The smallest box that holds both."""
    return right if left is None else tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))


class WorkerMethods:
    """Mixed into vLLM's worker class; `self` is the worker, and its weight-transfer engine is ours."""

    rank: int
    vllm_config: Any
    weight_transfer_engine: Any
    model_runner: Any
    get_draft_model: Callable[[], Any]

    @property
    def vime_receiver(self) -> WeightReceiver:
        return self.weight_transfer_engine.receiver

    @property
    def vime_draft_receiver(self) -> WeightReceiver | None:
        """Of the draft model; None in a generation that cannot update one."""
        return getattr(self.weight_transfer_engine, "draft_receiver", None)

    def vime_connect(self, connection: Connection, engine: int) -> None:
        # Each sync would warn of layers without weights of their own (rotary tables, a tied head). Whether a weight is missing is what the `held` proof
        # answers. vLLM resets its loggers when the engine starts, hence here.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        self._vime_of(connection.draft).connect(connection, engine, self.rank)

    def _vime_of(self, draft: bool) -> WeightReceiver:
        receiver = self.vime_draft_receiver if draft else self.vime_receiver
        if receiver is None:
            raise RunError(STAGE, "this vLLM generation cannot update a draft model's weights")
        return receiver

    def vime_disconnect(self) -> None:
        self.vime_receiver.close()
        if self.vime_draft_receiver is not None:
            self.vime_draft_receiver.close()

    def vime_report(self, draft: bool = False) -> Received:
        return self._vime_of(draft).report

    def vime_abort_update(self) -> None:
        """End an update half-way: layers leave the reload state with undefined weights, to be overwritten whole by the next full sync."""
        self.vime_receiver.abort()
        if self.vime_draft_receiver is not None:
            self.vime_draft_receiver.abort()
        with set_current_vllm_config(self.vllm_config):  # of both models: vLLM forgets which one the update was for where it failed itself
            finalize_layerwise_reload(self.model_runner.model, self.vllm_config.model_config)
            draft = self.get_draft_model() if self.vllm_config.speculative_config is not None else None
            if draft is not None:
                finalize_layerwise_reload(draft, self.vllm_config.speculative_config.draft_model_config)
        self._weight_update_active = False

    def vime_layout(self) -> dict[str, Box] | None:
        """What this worker needs of each tensor; None: everything (it is the engine's only one, or nothing was received yet)."""
        return self.vime_receiver.layout

    def vime_held(self) -> dict[str, str]:
        """Digest by key of every unit whose tensor this worker holds under the same name and shape; others (fused, packed, split) cannot be read back."""
        out = held(self.model_runner.model, self.vime_receiver)
        draft = self.vime_draft_receiver
        return out | held(self.get_draft_model(), draft) if draft is not None and draft.connection is not None else out


def name_loaders(model: torch.nn.Module) -> None:
    """vLLM's layer-wise reload tells its own loaders by `__name__`, which a functools.partial (MiniMax-M2's query and key norms) does not have."""
    for parameter in model.parameters():
        loader = getattr(parameter, "weight_loader", None)
        if isinstance(loader, partial) and not hasattr(loader, "__name__"):
            loader.__name__ = loader.func.__name__  # type: ignore[attr-defined]


def held(model: Any, receiver: WeightReceiver) -> dict[str, str]:
    """As `WorkerMethods.vime_held`, of one model. A draft model calls its layer `mtp_block`, which no checkpoint does; a vision-language model says by a mapper
    of its own how it calls the checkpoint's tensors. A tensor that vLLM keeps in a wider dtype than it was sent in is compared in the dtype it was sent in."""
    tensors = {name.replace(".mtp_block.", "."): parameter for name, parameter in model.named_parameters()}
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if receiver.connection is None:
        return {}
    digest, sent, out = receiver.platform.tensor_digest, getattr(torch, receiver.connection.dtype), {}
    for unit in receiver.units():
        found = tensors.get(unit.name if mapper is None else mapper._map_name(unit.name))
        if found is not None and tuple(found.shape) == unit.shape:
            out[unit.key] = digest(found.data[unit.slices].to(wire_dtype(unit, sent)))
    return out


platform().bootstrap_vllm()
keep_buffers()
