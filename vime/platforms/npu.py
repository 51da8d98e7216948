"""Ascend NPUs: HCCL, NPU IPC, vLLM-Ascend's sleep mode and graphs. Names are held to the real packages (`contracts.py`); not run on hardware.

torch_npu and vllm_ascend are imported inside methods only: without CANN's libraries importing torch_npu fails, and with it installed so does plain
`import torch` unless TORCH_DEVICE_BACKEND_AUTOLOAD=0.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vime.machine import cann_home
from vime.platforms.accelerator import Accelerator, contradicted, releases_memory
from vime.platforms.base import PlatformError, Role
from vime.platforms.digest import host_digest
from vime.platforms.npu_conflicts import conflicts

if TYPE_CHECKING:
    import torch

VERSION_FILES = {
    "cann": ("{cann}/version.cfg", "{cann}/ascend_toolkit_install.info", "{cann}/compiler/version.info"),
    "ascend-driver": ("/usr/local/Ascend/driver/version.info",),
    "ascend-firmware": ("/usr/local/Ascend/firmware/version.info",),
}
MEGATRON_ADAPTOR = "mindspeed.megatron_adaptor"  # MindSpeed's: faster kernels for Megatron-Core, optional


class NpuPlatform(Accelerator):
    """Implements `vime.platforms.base.Platform`."""

    name = "npu"
    device_type = "npu"
    ray_resource = "NPU"
    visible_devices_variable = "ASCEND_RT_VISIBLE_DEVICES"
    noset_variable = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
    device_nodes = "davinci[0-9]*"
    collective_backend = "hccl"
    weight_transports = ("ipc", "broadcast", "p2p", "disk")
    capabilities = frozenset({"sleep", "ipc", "graph", "mtp", "bf16"})
    missing = MappingProxyType(
        {
            "fp8": "A2 and A3 have no fp8 arithmetic; on A5 vLLM-Ascend's fp8 path is not declared here yet",
            "delta-net-fp32": "nobody has shown vLLM-Ascend's gated delta net kernels in float32; bfloat16 is what they are used in",
        }
    )
    vendor_weight_engines = MappingProxyType({"ipc": "npu_ipc", "broadcast": "hccl"})

    def installed(self, have: Mapping[str, str]) -> bool:
        return "torch-npu" in have

    def module(self) -> Any:
        import torch

        try:
            importlib.import_module("torch_npu")
        except (ImportError, OSError) as error:  # a missing libhccl.so is an ImportError here and an OSError there
            raise PlatformError(
                f"torch_npu cannot be imported ({str(error).splitlines()[0]}): install CANN and source its set_env.sh (vime doctor --platform npu)"
            ) from None
        return torch.npu  # type: ignore[attr-defined]

    # ---- environment --------------------------------------------------------------------------------------------------------------------------------------

    def environment(self, role: Role, config: Any) -> dict[str, str]:
        variables = super().environment(role, config)
        if role == "driver":
            return variables | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # the driver touches no device, and runs where there is none
        colocate = config.placement.mode == "colocate"
        variables |= {
            "PYTORCH_NPU_ALLOC_CONF": f"expandable_segments:{not colocate}",  # IPC and the sleep allocator need plain segments
            # two processes on one device, and several runs on one host, each need their own HCCL ports
            "HCCL_HOST_SOCKET_PORT_RANGE": "auto",
            "HCCL_NPU_SOCKET_PORT_RANGE": "auto",
            "HCCL_CONNECT_TIMEOUT": str(clamp(config.timeouts.start_s, 120, 7200)),  # seconds; 120 is HCCL's own default, short for a large model's start
            "HCCL_EXEC_TIMEOUT": str(clamp(config.timeouts.train_s, 1800, 17340)),
        }
        if role == "trainer":
            variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # Megatron-Core asks for it by this name on every device
        else:
            variables["VLLM_ASCEND_ENABLE_NZ"] = "0"  # weights in the NZ format are not those that were sent: vLLM-Ascend refuses an update then
        if config.train.deterministic:
            variables |= {"HCCL_DETERMINISTIC": "true", "LCCL_DETERMINISTIC": "1", "ATB_MATMUL_SHUFFLE_K_ENABLE": "0"}
        return variables

    def engine_options(self, config: Any) -> dict[str, Any]:
        return {**super().engine_options(config), "additional_config": {"weight_nz_mode": 0}}

    def preflight(self, config: Any, model: Mapping[str, Any], packages: Mapping[str, str]) -> list[str]:
        sleep = {"enable_sleep_mode": True} if releases_memory(config) else {}
        problems = contradicted(config.vllm, sleep, {"enable_sleep_mode": "a colocated engine gives its memory back while the trainer works"})
        additional: Any = next((value for key, value in config.vllm.items() if key.replace("-", "_") == "additional_config"), {})
        if not isinstance(additional, Mapping):
            return [*problems, f"vllm.additional_config: {additional!r} is no block of options: give one, or remove it", *conflicts(model, packages)]
        if additional.get("weight_nz_mode", 0):
            problems.append(
                f"vllm.additional_config.weight_nz_mode: {additional['weight_nz_mode']} changes the layout of weights that are updated while the engine "
                "runs: set 0 or remove it"
            )
        return problems + unknown_options(additional, packages.get("vllm-ascend")) + conflicts(model, packages)

    # ---- bring-up -----------------------------------------------------------------------------------------------------------------------------------------

    def bootstrap_megatron(self) -> None:
        """torch_npu and its CUDA-to-NPU names, MindSpeed's adaptor where it is installed; all before anything of Megatron-Core is imported.

        Raises `PlatformError` when Megatron-Core was imported earlier: it would have kept references to CUDA functions.
        """
        if getattr(self, "_ready", False):
            return
        early = sorted(name for name in sys.modules if name.split(".")[0] == "megatron")
        if early:
            raise PlatformError(f"Megatron-Core ({early[0]}) was imported before the NPU was brought up: import it through vime, or after bootstrap_megatron()")
        self.module()
        importlib.import_module("torch_npu.contrib.transfer_to_npu")  # torch.cuda.* → torch.npu.*, the vendor's own mechanism
        if importlib.util.find_spec(MEGATRON_ADAPTOR.partition(".")[0]) is not None:
            importlib.import_module(MEGATRON_ADAPTOR)
        self._ready = True

    def new_process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        self.module()
        from torch_npu._C._distributed_c10d import ProcessGroupHCCL

        options = ProcessGroupHCCL.Options()
        options._timeout = timeout
        return ProcessGroupHCCL(store, rank, size, options)

    def rebuild(self) -> Any:
        self.module()  # importing torch_npu also teaches torch's reduce_tensor about NPU memory
        from torch_npu.multiprocessing.reductions import rebuild_npu_tensor

        return rebuild_npu_tensor

    def tensor_digest(self, tensor: torch.Tensor) -> str:
        return host_digest(tensor)  # 64-bit integer products are slow on the device's vector cores

    def versions(self) -> dict[str, str]:
        cann = cann_home() or ""
        found = {name: read_version([path.format(cann=cann) for path in paths if cann or "{cann}" not in path]) for name, paths in VERSION_FILES.items()}
        return {name: version for name, version in found.items() if version}


def unknown_options(additional: Mapping[str, Any], version: str | None) -> list[str]:
    """Lines for keys of vLLM-Ascend's `additional_config` that this version does not read: it would ignore them in silence."""
    path = Path(__file__).parent / "catalogues" / f"vllm-ascend-{version}.json"
    if not path.is_file():
        return []
    known = json.loads(path.read_text(encoding="utf-8"))["options"]["additional_config"]
    out = []
    for key in additional:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            out.append(f"vllm.additional_config.{key}: vllm-ascend {version} reads no such option{f'; did you mean {near[0]}?' if near else ''}")
    return out


def clamp(value: float, low: int, high: int) -> int:
    return int(min(max(value, low), high))


VERSION = re.compile(r"(?im)(?:^\s*version\s*=\s*\[?\"?|_running_version=\[)([0-9]+\.[0-9][0-9A-Za-z.-]*)")


def read_version(paths: list[str]) -> str | None:
    """The first version number in the first of the vendor's version files that is there: `version=8.5.0`, `Version=25.2.0`, `…_running_version=[8.5.0:…]`."""
    for path in map(Path, paths):
        # the driver's file may be root's alone
        if path.is_file() and os.access(path, os.R_OK) and (match := VERSION.search(path.read_text(errors="replace"))):
            return match[1]
    return None
