"""The worker side of 0.23: its weight-transfer engine only receives; the worker prepares and finalizes the layers itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from vime.errors import RunError
from vime.rollout.vllm_compat.base import BACKEND
from vime.rollout.vllm_compat.worker import LayerwiseLoader, Load, WorkerMethods, platform
from vime.weights.receiver import WeightReceiver


@dataclass
class NoInit(WeightTransferInitInfo):
    """Connections are made by `WorkerMethods.vime_connect`."""


@dataclass
class Version(WeightTransferUpdateInfo):
    """Which version to receive next, and what it is a delta against."""

    version: int = -1
    base_version: int | None = None


class VimeWeightTransfer(WeightTransferEngine):
    """Receives; the layers are already in the reload state when it is called."""

    init_info_cls = NoInit
    update_info_cls = Version

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.receiver = WeightReceiver()

    def init_transfer_engine(self, init_info: NoInit) -> None:
        return None

    def receive_weights(self, update_info: Version, load_weights: Load) -> None:
        layout = self.receiver.layout_to_measure(self.parallel_config.world_size)
        self.receiver.receive(update_info.version, update_info.base_version, LayerwiseLoader(load_weights, self.model, layout))

    def shutdown(self) -> None:
        self.receiver.close()

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: dict[str, Any] | Any) -> None:
        raise RunError("weight sync", "vime's trainers send by `vime.weights.sender`, not by vLLM's trainer side")


class WorkerExtension(WorkerMethods):
    """The methods `collective_rpc` reaches."""

    def vime_before_reload(self) -> None:
        platform().before_weight_reload(self.model_runner.model)

    def vime_after_reload(self) -> None:
        platform().after_weight_reload(self.model_runner.model)
        self.vime_receiver.commit()

    def vime_abort_update(self) -> None:
        super().vime_abort_update()
        self._is_checkpoint_format = True


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, VimeWeightTransfer)
