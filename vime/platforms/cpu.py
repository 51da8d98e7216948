"""The CPU platform: logical device slots, gloo, shared memory, and what vLLM's and Megatron-Core's CPU builds need to be right."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vime.platforms.base import Role
from vime.platforms.digest import host_digest
from vime.platforms.probe import probe

if TYPE_CHECKING:
    import torch

    from vime.platforms.memory import SharedBuffer

MINIMUM_SLOTS = 8
KV_CACHE_GIB = 1

MISSING = MappingProxyType(
    {
        "sleep": "vLLM's CPU worker ignores sleep and wake-up: colocated trainer and engine both keep their memory",
        "fp8": "vLLM's CPU build has no fp8 kernels",
        "delta-net-fp32": "vLLM's CPU kernels of the gated delta net take bfloat16 alone (`CPU GDN attention requires BF16`), with heads of 64 or 128",
    }
)


DELTA_NET_HEADS = (64, 128)  # tried: 64, 128 (right); 32 (`Unexpected head dim size, 32`)


def cores() -> int:
    """Cores this process may use (its affinity mask, not the machine's count)."""
    return len(os.sched_getaffinity(0))


class CpuPlatform:
    """Implements `vime.platforms.base.Platform`.

    A CPU has no devices to count, so a node offers *logical slots*: `max(cores, 8)` unless `placement.devices_per_node` says otherwise. Trainer ranks and
    engines take one slot each and share the cores; slots bound how many processes a run may start, not how fast they are.
    """

    name = "cpu"
    device_type = "cpu"
    ray_resource = "CPU"
    visible_devices_variable: str | None = None
    collective_backend = "gloo"
    weight_transports: tuple[str, ...] = ("ipc", "broadcast", "p2p", "disk")
    capabilities = frozenset({"ipc", "graph", "mtp", "bf16"})  # graph: vLLM's compiled mode (TorchDynamo and Inductor); there are no device graphs
    missing: Mapping[str, str] = MISSING
    vendor_weight_engines: Mapping[str, str] = MappingProxyType({})  # vLLM's own transfer backends (nccl, ipc) have no CPU form
    relays_ipc = False

    def available(self) -> bool:
        return True

    def device_count(self) -> int:
        return max(cores(), MINIMUM_SLOTS)

    def device(self, local_index: int) -> torch.device:
        import torch

        return torch.device("cpu")

    def set_device(self, local_index: int) -> None:
        return None

    def ray_options(self, share: float) -> dict[str, Any]:
        return {"num_cpus": share}

    def device_identity(self) -> str:
        return "cpu"

    def health_probe(self, local_index: int) -> float:
        return probe(self, local_index)

    def environment(self, role: Role, config: Any) -> dict[str, str]:
        variables = dict(COMMON)
        if config.placement.nodes == 1:
            variables |= {"GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
        if role == "driver":
            return variables
        variables["OMP_NUM_THREADS"] = str(threads(role, config))
        if role == "engine":
            variables |= engine_environment(config)
            if compiled(config):
                variables["TORCHDYNAMO_DISABLE"] = "0"
        return variables

    def engine_options(self, config: Any) -> dict[str, Any]:
        # Unless the configuration says otherwise. Compiling takes longer than a twin's whole run. A prompt cut in two discards the
        # token sampled after its first part and turns the request's seeded generator back, which torch's CPU generator cannot do
        # (`CPU Generator does not use offset`)
        return {"enforce_eager": True, "enable_chunked_prefill": False}

    def preflight(self, config: Any, model: Mapping[str, Any], packages: Mapping[str, str]) -> list[str]:
        return delta_net_problems(config, model)

    def bootstrap_megatron(self) -> None:
        from vime.platforms.cpu_megatron import apply

        apply()

    def bootstrap_vllm(self) -> None:
        from vime.platforms.cpu_torchvision import stand_in_for_torchvision
        from vime.platforms.cpu_vllm import expand_by_requests, rotate_every_head, route_by_sigmoid

        stand_in_for_torchvision()
        rotate_every_head()
        route_by_sigmoid()
        expand_by_requests()

    def before_weight_reload(self, model: Any) -> None:
        from vime.platforms.cpu_vllm import forget_moe_prepack

        forget_moe_prepack(model)

    def after_weight_reload(self, model: Any) -> None:
        from vime.platforms.cpu_vllm import repack_tied_heads

        repack_tied_heads(model)

    def share(self, nbytes: int) -> SharedBuffer:
        from vime.platforms import host_memory

        return host_memory.share(nbytes)

    def attach(self, handle: bytes, descriptor: int | None, nbytes: int) -> SharedBuffer:
        from vime.platforms import host_memory

        assert descriptor is not None  # every buffer of `share` is a file
        return host_memory.attach(descriptor, nbytes)

    def training_memory(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def new_process_group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        from torch.distributed import ProcessGroupGloo

        return ProcessGroupGloo(store, rank, size, timeout)

    def tensor_digest(self, tensor: torch.Tensor) -> str:
        return host_digest(tensor)

    def synchronize(self) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def peak_memory_gib(self) -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux reports KiB

    def versions(self) -> dict[str, str]:
        import platform

        return {"machine": platform.machine(), "libc": "-".join(platform.libc_ver())}


# Every process of a run. PASSIVE: trainer and engine take turns on the same cores, and a waiting OpenMP team that spins steals them from the one that works.
# Measured with the twin on two cores: busy with other work, a training step takes 0.4 s passive and 7.5 s spinning, a rollout 0.15 s and 1.2 s; alone, a step
# of the loop takes 0.21 to 0.24 s either way (one thread each: 0.23 to 0.27 s).
COMMON = MappingProxyType(
    {
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",  # models are directories; nothing is fetched behind the user's back
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",  # vLLM compiles its log-prob gather otherwise: 18 s at the first rollout
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",  # the same for Intel's OpenMP where it is preloaded
    }
)


def delta_net_problems(config: Any, model: Mapping[str, Any]) -> list[str]:
    """What vLLM's CPU kernels of the gated delta net refuse, told before an engine starts (vLLM itself says so at the first request)."""
    text = {**model, **(model.get("text_config") or {})}
    if "linear_key_head_dim" not in text:
        return []
    out, dtype = [], config.rollout.dtype or config.model.dtype
    if dtype != "bfloat16":
        out.append(f"rollout.dtype: {dtype} cannot be served: {MISSING['delta-net-fp32']}. Set rollout.dtype: bfloat16")
    widths = {key: text.get(key) for key in ("linear_key_head_dim", "linear_value_head_dim")}
    served = " or ".join(map(str, DELTA_NET_HEADS))
    return out + [
        f"config.json: {key} {width}: vLLM's CPU build serves gated delta net with heads of {served} alone"
        for key, width in widths.items()
        if width not in DELTA_NET_HEADS
    ]


def compiled(config: Any) -> bool:
    """Whether the engine is to run in vLLM's compiled mode."""
    return any(key.replace("-", "_") == "enforce_eager" and value is False for key, value in config.vllm.items())


def threads(role: Role, config: Any) -> int:
    """OpenMP threads of one process: its kind's share of the cores, as trainers and engines take turns."""
    parallel = config.parallel
    trainers = parallel.tensor * parallel.pipeline * parallel.context * parallel.data
    processes = trainers if role == "trainer" else config.rollout.engines * config.rollout.tensor_parallel
    return max(1, cores() // processes)


def engine_environment(config: Any) -> dict[str, str]:
    """What vLLM reads from its environment and offers no option for."""
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core runs in the actor's own process: deterministic order, one process less
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # workers share the cores with trainers; vLLM's own binding wants a NUMA node a worker
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    if "kv_cache_memory_bytes" not in config.vllm:
        variables["VLLM_CPU_KVCACHE_SPACE"] = str(KV_CACHE_GIB)  # GiB; without it vLLM takes most of the machine's memory
    return variables
