"""What a platform must provide. Orchestration is written once against this protocol; nothing outside `vime/platforms` names a vendor's module."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from vime.platforms.memory import SharedBuffer

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
    vendor_weight_engines: Mapping[str, str]  # vime's transport -> the backend of the vendor's vLLM that does the like; vime brings its own
    relays_ipc: bool  # shared memory of one device reaches only processes on that device, so trainer ranks pass every message on among themselves first

    def available(self) -> bool:
        """Whether this machine has such devices and the packages to use them; found out without importing these packages."""

    def device_count(self) -> int:
        """Devices on this node (logical slots on CPU) that this process may use."""

    def device(self, local_index: int) -> torch.device:
        """The torch device of a process' `local_index`-th visible device."""

    def set_device(self, local_index: int) -> None:
        """Make it this process' current device."""

    def ray_options(self, share: float) -> dict[str, Any]:
        """Options of a Ray actor that takes `share` of one device (colocated actors share one)."""

    def device_identity(self) -> str:
        """Names the physical device this process works on, equal in every process on this host that works on it."""

    def health_probe(self, local_index: int) -> float:
        """Compute something known on the device and wait for it; seconds taken. Raises `PlatformError` for a wrong result or a device that fails."""

    def environment(self, role: Role, config: Any) -> dict[str, str]:
        """Variables a process of `role` must start with; recorded in the manifest. `config` is the run's `Config`. (`launch.py` joins the user's own.)"""

    def engine_options(self, config: Any) -> dict[str, Any]:
        """vLLM options this platform's engines need for this run. The `vllm:` block is laid over them; `preflight` says where it contradicts."""

    def preflight(self, config: Any, model: Mapping[str, Any], packages: Mapping[str, str]) -> list[str]:
        """What is known to break on this platform: one line each, with the mend. `model`: config.json; `packages`: installed distributions and versions."""

    def bootstrap_megatron(self) -> None:
        """Make Megatron-Core usable in this process; idempotent, called before anything of it is imported (`training/distributed.py`)."""

    def bootstrap_vllm(self) -> None:
        """Make vLLM right on this platform in an engine process; idempotent, called before the engine is built."""

    def before_weight_reload(self, model: Any) -> None:
        """Called on an engine's model before new weights are loaded into it."""

    def after_weight_reload(self, model: Any) -> None:
        """Called on an engine's model once its new weights are all in place."""

    def share(self, nbytes: int) -> SharedBuffer:
        """uint8 memory of the current device that other processes on it can map."""

    def attach(self, handle: bytes, descriptor: int | None, nbytes: int) -> SharedBuffer:
        """Map what another process shared; the tensor is on this process' current device."""

    def training_memory(self) -> AbstractContextManager[Any]:
        """Around the making of model and optimizer state, which `training/residency.py` parks while a colocated engine works."""

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


# sleep: engine and trainer give their memory back for each other; ipc: two processes share device memory; graph: captured or compiled execution in the engine
# delta-net-fp32: the engine serves gated delta net in float32, so that it can be compared with the trainer exactly
CAPABILITIES = frozenset({"sleep", "ipc", "graph", "fp8", "mtp", "bf16", "delta-net-fp32"})
