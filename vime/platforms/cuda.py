"""NVIDIA GPUs: NCCL, CUDA IPC, vLLM's sleep mode. Declared; names are held to the real packages (`contracts.py`); docs/platforms.md says what has run where."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vime.platforms.accelerator import Accelerator, contradicted, releases_memory
from vime.platforms.base import PlatformError, Role
from vime.platforms.digest import device_digest

if TYPE_CHECKING:
    import torch


class CudaPlatform(Accelerator):
    """Implements `vime.platforms.base.Platform`."""

    name = "cuda"
    device_type = "cuda"
    ray_resource = "GPU"
    visible_devices_variable = "CUDA_VISIBLE_DEVICES"
    noset_variable = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
    device_nodes = "nvidia[0-9]*"
    collective_backend = "nccl"
    weight_transports = ("ipc", "broadcast", "p2p", "disk")
    capabilities = frozenset({"sleep", "ipc", "graph", "fp8", "mtp", "bf16", "delta-net-fp32"})
    missing: Mapping[str, str] = MappingProxyType({})
    vendor_weight_engines = MappingProxyType({"ipc": "ipc", "broadcast": "nccl"})

    def installed(self, have: Mapping[str, str]) -> bool:
        return "torch" in have and not have["torch"].endswith("+cpu")

    def module(self) -> Any:
        import torch

        if not torch.cuda.is_available():
            raise PlatformError(
                f"torch {torch.__version__} sees no CUDA device: install a CUDA build of torch and check nvidia-smi (vime doctor --platform cuda)"
            )
        return torch.cuda

    def environment(self, role: Role, config: Any) -> dict[str, str]:
        variables = super().environment(role, config)
        if role == "driver":
            return variables
        # CUDA IPC and vLLM's sleep allocator need plain segments; elsewhere expandable ones waste less
        segments = f"expandable_segments:{config.placement.mode != 'colocate'}"
        variables |= {"PYTORCH_CUDA_ALLOC_CONF": segments, "PYTORCH_ALLOC_CONF": segments}  # the name of old, and the one torch reads first since 2.9
        if role == "trainer":
            # Megatron overlaps a tensor-parallel collective with a matrix product by their order in one queue
            variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
            if config.train.deterministic:
                variables |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring", "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}
        return variables

    def preflight(self, config: Any, model: Mapping[str, Any], packages: Mapping[str, str]) -> list[str]:
        sleep = {"enable_sleep_mode": True} if releases_memory(config) else {}
        problems = contradicted(config.vllm, sleep, {"enable_sleep_mode": "a colocated engine gives its memory back while the trainer works"})
        if packages.get("torch", "").endswith("+cpu"):
            problems.append(f"torch {packages['torch']} is a CPU build: install vime[cuda] in an environment of its own (docs/install.md)")
        return problems

    def bootstrap_megatron(self) -> None:
        self.module()  # Megatron-Core is written for CUDA; TransformerEngine is used where it is installed (`training/model.py`)

    def new_process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        return ProcessGroupNCCL(store, rank, size, options)

    def rebuild(self) -> Any:
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        return rebuild_cuda_tensor

    def tensor_digest(self, tensor: torch.Tensor) -> str:
        return device_digest(tensor)

    def versions(self) -> dict[str, str]:
        from vime.machine import nvidia

        drivers = {gpu.driver for gpu in nvidia().gpus if gpu.driver}
        return {"nvidia-driver": ", ".join(sorted(drivers))} if drivers else {}
