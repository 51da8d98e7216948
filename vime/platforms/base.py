"""What a platform must provide. Orchestration is written once against this protocol; nothing outside `vime/platforms` names a vendor's module."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

Role = Literal["driver", "trainer", "engine"]


class PlatformError(RuntimeError):
    """The machine cannot do what the configuration asks of this platform; the message says what to change."""


class Platform(Protocol):
    """One kind of device. Implementations import their vendor's packages inside methods only."""

    name: str  # "cpu", "cuda", "npu"
    device_type: str  # torch's device type
    ray_resource: str  # "CPU", "GPU", "NPU": what a placement bundle asks for
    visible_devices_variable: str | None
    collective_backend: str  # "gloo", "nccl", "hccl"
    weight_transports: tuple[str, ...]  # supported ones, the preferred first
    capabilities: frozenset[str]  # of CAPABILITIES
    missing: Mapping[str, str]  # capability -> why this platform lacks it, in words for a report

    def device_count(self) -> int:
        """Devices on this node (logical slots on CPU)."""

    def device(self, local_index: int) -> torch.device:
        """The torch device of a process' `local_index`-th visible device."""

    def set_device(self, local_index: int) -> None:
        """Make it this process' current device."""

    def ray_options(self, share: float) -> dict[str, Any]:
        """Options of a Ray actor that takes `share` of one device (colocated actors share one)."""

    def environment(self, role: Role, config: Any) -> dict[str, str]:
        """Variables a process of `role` must start with; recorded in the manifest. `config` is the run's `Config`."""

    def bootstrap_megatron(self) -> None:
        """Make Megatron-Core usable in this process; idempotent, called once after its modules are imported and before a model is built."""

    def bootstrap_vllm(self) -> None:
        """Make vLLM right on this platform in an engine process; idempotent, called before the engine is built."""

    def before_weight_reload(self, model: Any) -> None:
        """Called on an engine's model before new weights are loaded into it."""

    def after_weight_reload(self, model: Any) -> None:
        """Called on an engine's model once its new weights are all in place."""

    def new_process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """A torch process group outside the default world (weight transfer); `store` is a torch Store shared by its members."""

    def tensor_digest(self, tensor: torch.Tensor) -> str:
        """A digest of a tensor's bytes, shape and dtype; equal on every process of this platform for equal bytes."""

    def synchronize(self) -> None:
        """Wait for the device's queued work."""

    def empty_cache(self) -> None:
        """Give cached device memory back."""

    def peak_memory_gib(self) -> float:
        """Peak device memory of this process (resident set on CPU), GiB."""

    def versions(self) -> dict[str, str]:
        """Versions of the vendor's stack (driver, CANN, torch_npu, …) for the manifest; absent parts are left out."""


CAPABILITIES = frozenset({"sleep", "ipc", "graph", "fp8", "mtp", "bf16"})
