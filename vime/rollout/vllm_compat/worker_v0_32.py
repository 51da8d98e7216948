"""The worker side of 0.32: a weight-transfer engine in vLLM's registry. vLLM imports this module in every worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload

from vime.rollout.vllm_compat.base import BACKEND
from vime.rollout.vllm_compat.worker import LayerwiseLoader, WorkerMethods, name_loaders, platform
from vime.weights.receiver import WeightReceiver


@dataclass
class NoInit(WeightTransferInitInfo):
    """Connections are made by `WorkerMethods.vime_connect`."""


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
        self.receiver, self.draft_receiver = WeightReceiver(), WeightReceiver()

    @property
    def target(self) -> WeightReceiver:
        """Of the model that the open update is for."""
        return self.receiver if self.model is self._default_model else self.draft_receiver

    def init_transfer_engine(self, init_info: NoInit) -> None:
        return None

    def start_weight_update(self) -> None:
        platform().before_weight_reload(self.model)
        name_loaders(self.model)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, but waits for the device by way of our platform (the base class raises where there is no accelerator)."""
        self.receive_weights(self.parse_update_info(update_info))
        platform().synchronize()

    def receive_weights(self, update_info: Version) -> None:
        layout = self.target.layout_to_measure(self.parallel_config.world_size)
        self.target.receive(update_info.version, update_info.base_version, LayerwiseLoader(self.model.load_weights, self.model, layout))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        platform().after_weight_reload(self.model)
        self.target.commit()

    def shutdown(self) -> None:
        self.receiver.close()
        self.draft_receiver.close()


class WorkerExtension(WorkerMethods):
    """The methods `collective_rpc` reaches."""

    def vime_abort_update(self) -> None:
        super().vime_abort_update()
        self.weight_transfer_engine.reset_weight_update_target()


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, VimeWeightTransfer)
