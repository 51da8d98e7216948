"""What CUDA and NPU have in common: devices behind a `torch.<name>` module, memory shared by handles, and processes that are shown only their own devices."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vime.machine import packages
from vime.platforms.base import PlatformError, Role
from vime.platforms.memory import SharedBuffer
from vime.platforms.probe import probe
from vime.platforms.visible import VisibleDevices

if TYPE_CHECKING:
    import torch

# Every process of a run, on every accelerator.
COMMON = MappingProxyType(
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",  # models are directories; nothing is fetched behind the user's back
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
    }
)
ENGINE = MappingProxyType(
    {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core runs in the actor's own process: deterministic order, one process less
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a forked worker would inherit an initialised device
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
)


class Accelerator:
    """The common half of `vime.platforms.base.Platform`; a provider adds names, environment, bring-up and what it knows to break.

    The vendor's packages are imported inside methods only, and never in the driver: it counts device nodes.
    """

    name: str
    device_type: str
    ray_resource: str
    visible_devices_variable: str
    noset_variable: str  # tells Ray to leave the visible-devices variable to vime
    device_nodes: str  # glob of the devices' nodes under /dev
    relays_ipc = True

    # ---- devices ------------------------------------------------------------------------------------------------------------------------------------------

    def module(self) -> Any:
        """`torch.cuda`, `torch.npu`. Raises `PlatformError` where it cannot be had."""
        raise NotImplementedError

    def available(self) -> bool:
        return self.installed(packages()) and self.device_count() > 0

    def installed(self, have: Mapping[str, str]) -> bool:
        """Whether the vendor's packages are among the installed distributions."""
        raise NotImplementedError

    def device_count(self) -> int:
        nodes = len([path for path in Path("/dev").glob(self.device_nodes) if path.name.lstrip("abcdefghijklmnopqrstuvwxyz").isdigit()])
        visible = VisibleDevices.read(self.visible_devices_variable, os.environ, nodes)
        return len(visible) if nodes else 0  # the variable may be set where there is no device at all

    def device(self, local_index: int) -> torch.device:
        import torch

        self.module()
        return torch.device(self.device_type, local_index)

    def set_device(self, local_index: int) -> None:
        self.module().set_device(local_index)

    def device_identity(self) -> str:
        """The boot of this host and the physical device's number: what processes that see different devices under the same local number agree on."""
        module = self.module()
        visible = VisibleDevices.read(self.visible_devices_variable, os.environ, module.device_count())
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{self.name}-{visible.of(module.current_device())}"

    def health_probe(self, local_index: int) -> float:
        return probe(self, local_index)  # type: ignore[arg-type]

    # ---- Ray and environment ------------------------------------------------------------------------------------------------------------------------------

    def ray_options(self, share: float) -> dict[str, Any]:
        """Nothing: the placement group's bundle holds the devices, and vime hands their numbers out itself (`loop/placement.py`).

        Ray gives a fraction of a device to exactly one device, so two halves of two devices, which a colocated engine over two needs, cannot be asked for.
        """
        return {"num_cpus": 0}

    def environment(self, role: Role, config: Any) -> dict[str, str]:
        variables = {**COMMON, self.noset_variable: "1"}
        if config.placement.nodes == 1:
            variables["VLLM_HOST_IP"] = "127.0.0.1"
        return variables | (dict(ENGINE) if role == "engine" else {})

    def engine_options(self, config: Any) -> dict[str, Any]:
        return {"enable_sleep_mode": True} if releases_memory(config) else {}

    # ---- memory -------------------------------------------------------------------------------------------------------------------------------------------

    def share(self, nbytes: int) -> SharedBuffer:
        """Device memory and its handle: torch's own reduction of a tensor for another process (`torch.multiprocessing`), pickled."""
        import torch
        from torch.multiprocessing.reductions import reduce_tensor

        buffer = torch.empty(nbytes, dtype=torch.uint8, device=self.device(self.module().current_device()))
        _, arguments = reduce_tensor(buffer)
        return SharedBuffer(buffer, pickle.dumps(arguments))

    def attach(self, handle: bytes, descriptor: int | None, nbytes: int) -> SharedBuffer:
        """`handle` comes over a socket that only this user's processes can connect to."""
        arguments = list(pickle.loads(handle))
        # the device's number in the other process; here the same device may have another (position 6 of torch's rebuild arguments)
        arguments[DEVICE_ARGUMENT] = self.module().current_device()
        tensor = self.rebuild()(*arguments)
        if tensor.numel() != nbytes:
            raise PlatformError(f"shared device memory has {tensor.numel()} bytes where {nbytes} were announced: the versions of torch on both sides differ")
        return SharedBuffer(tensor)

    def rebuild(self) -> Any:
        """The function that makes a tensor of a handle's arguments."""
        raise NotImplementedError

    def training_memory(self) -> AbstractContextManager[Any]:
        return nullcontext()  # parking works on storages (`platforms/memory.py`), so no allocator of its own is needed

    def synchronize(self) -> None:
        self.module().synchronize()

    def empty_cache(self) -> None:
        self.module().empty_cache()

    def peak_memory_gib(self) -> float:
        return self.module().max_memory_allocated() / 2**30

    # ---- vLLM ---------------------------------------------------------------------------------------------------------------------------------------------

    def bootstrap_vllm(self) -> None:
        return None

    def before_weight_reload(self, model: Any) -> None:
        return None

    def after_weight_reload(self, model: Any) -> None:
        return None


DEVICE_ARGUMENT = 6


def releases_memory(config: Any) -> bool:
    """Whether trainer and engine give their memory back for each other (`placement.release_memory`)."""
    return config.placement.mode == "colocate" and config.placement.release_memory != "never"


def contradicted(block: Mapping[str, Any], wanted: Mapping[str, Any], why: Mapping[str, str]) -> list[str]:
    """Lines for options of a `vllm:` block (dashes allowed) that differ from what the platform needs."""
    given = {key.replace("-", "_"): value for key, value in block.items()}
    return [f"vllm.{key}: {given[key]!r} cannot be: {why[key]}. Remove it." for key in wanted if key in given and key in why and given[key] != wanted[key]]
