"""What runs inside vLLM's worker processes: our weight-transfer engine and the methods `collective_rpc` reaches. vLLM imports this module in every worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.platforms import current_platform

from vime.platforms import registry
from vime.rollout.vllm_compat.base import BACKEND
from vime.weights.connection import Connection
from vime.weights.plan import Box
from vime.weights.receiver import Received, WeightReceiver

if TYPE_CHECKING:
    from vime.platforms.base import Platform


def platform() -> Platform:
    """vime's platform of this worker: the one vLLM itself runs on."""
    return registry.get(current_platform.device_type)


class LayerwiseLoader:
    """Loads into a model that is in vLLM's layer-wise reload. vLLM buffers the tensors of a layer until the layer is complete."""

    def __init__(self, model: Any):
        self.model = model

    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        if tensors:
            self.model.load_weights(list(tensors))

    def settle(self, buffer: torch.Tensor) -> None:
        first, last = buffer.data_ptr(), buffer.data_ptr() + buffer.numel()
        for layer in self.model.modules():
            for _, bound in get_layerwise_info(layer).loaded_weights:
                for name, value in bound.arguments.items():
                    if isinstance(value, torch.Tensor) and not value.is_meta and first <= value.data_ptr() < last:
                        bound.arguments[name] = value.clone()


@dataclass
class NoInit(WeightTransferInitInfo):
    """Connections are made by `WeightWorkerExtension.vime_connect`."""


@dataclass
class Version(WeightTransferUpdateInfo):
    """Which version to receive next, and what it is a delta against."""

    version: int = -1
    base_version: int | None = None


class VimeWeightTransfer(WeightTransferEngine[NoInit, Version]):
    """vLLM's side of a session: prepare the layers, receive, finalize."""

    init_info_cls = NoInit
    update_info_cls = Version

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.receiver = WeightReceiver()

    def init_transfer_engine(self, init_info: NoInit) -> None:
        return None

    def start_weight_update(self) -> None:
        platform().before_weight_reload(self.model)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, but waits for the device by way of our platform (the base class raises where there is no accelerator)."""
        self.receive_weights(self.parse_update_info(update_info))
        platform().synchronize()

    def receive_weights(self, update_info: Version) -> None:
        self.receiver.receive(update_info.version, update_info.base_version, LayerwiseLoader(self.model))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        platform().after_weight_reload(self.model)
        self.receiver.commit()

    def shutdown(self) -> None:
        self.receiver.close()


class WeightWorkerExtension:
    """Mixed into vLLM's worker class; `self` is the worker."""

    rank: int
    vllm_config: Any
    weight_transfer_engine: VimeWeightTransfer
    model_runner: Any

    def vime_connect(self, connection: Connection, engine: int) -> None:
        self.weight_transfer_engine.receiver.connect(connection, engine, self.rank)

    def vime_disconnect(self) -> None:
        self.weight_transfer_engine.receiver.close()

    def vime_report(self) -> Received:
        return self.weight_transfer_engine.receiver.report

    def vime_abort_update(self) -> None:
        """End an update half-way: layers leave the reload state with undefined weights, to be overwritten whole by the next full sync."""
        engine = self.weight_transfer_engine
        engine.receiver.abort()
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(engine.model, engine.model_config)
        engine.reset_weight_update_target()
        self._weight_update_active = False

    def vime_layout(self) -> dict[str, Box] | None:
        """What this worker needs of each tensor; None: everything (it is the only one, or nothing was loaded yet)."""
        return None

    def vime_held(self) -> dict[str, str]:
        """Digests of the received tensors that this worker holds under the same name and shape; the others (fused, packed, split) cannot be read back."""
        tensors = dict(self.model_runner.model.named_parameters())
        digest = platform().tensor_digest
        shapes = self.weight_transfer_engine.receiver.shapes()
        readable = {name: tensors[name].data for name, shape in shapes.items() if name in tensors and tuple(tensors[name].shape) == shape}
        return {name: digest(tensor) for name, tensor in readable.items()}


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, VimeWeightTransfer)
platform().bootstrap_vllm()
# Each sync would warn of layers that have no weights of their own (rotary tables, a tied head). Whether a weight is missing is what the `held` proof answers.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
