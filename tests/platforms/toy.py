"""A third platform, as another package would add it: one file, one entry point. It is the CPU under another name, with numbered devices, relayed shared memory
and a sleep mode, so that the paths only accelerators take run here for real."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from vime.platforms.base import Role
from vime.platforms.cpu import CpuPlatform, engine_environment


class ToyPlatform(CpuPlatform):
    """Devices are only numbers; what runs on them runs on the CPU."""

    name = "toy"
    ray_resource = "TOY"
    visible_devices_variable = "TOY_VISIBLE_DEVICES"
    capabilities = CpuPlatform.capabilities | {"sleep"}
    missing: Mapping[str, str] = MappingProxyType({name: why for name, why in CpuPlatform.missing.items() if name != "sleep"})
    relays_ipc = True

    def device_count(self) -> int:
        return 4

    def ray_options(self, share: float) -> dict[str, Any]:
        return {"num_cpus": 0}

    def device_identity(self) -> str:
        import torch.distributed as dist

        devices = os.environ["TOY_VISIBLE_DEVICES"].split(",")
        return f"toy-{devices[dist.get_rank() % len(devices)]}"  # an engine's workers see all of its devices, each works on its own

    def environment(self, role: Role, config: Any) -> dict[str, str]:
        return super().environment(role, config) | (engine_environment(config) if role == "engine" else {})
