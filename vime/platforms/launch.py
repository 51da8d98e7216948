"""How a process of a run is started: the platform's environment and options joined with the user's, contradictions refused."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from vime.errors import UserError
from vime.platforms.base import Platform, Role

# Variables that a user may tighten or loosen from outside: a value of theirs wins over the platform's. All others must agree or stay unset.
FREE = frozenset(
    {
        "HF_HUB_OFFLINE",
        "HCCL_CONNECT_TIMEOUT",
        "HCCL_EXEC_TIMEOUT",
        "HCCL_HOST_SOCKET_PORT_RANGE",
        "HCCL_NPU_SOCKET_PORT_RANGE",
        "GLOO_SOCKET_IFNAME",
        "KMP_BLOCKTIME",
        "NCCL_ALGO",
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_USAGE_STATS_ENABLED",
        "TOKENIZERS_PARALLELISM",
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_HOST_IP",
        "VLLM_LOGGING_LEVEL",
        "VLLM_NO_USAGE_STATS",
    }
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ROLES: tuple[Role, ...] = ("driver", "trainer", "engine")


def environment(platform: Platform, role: Role, config: Any) -> dict[str, str]:
    """What a process of `role` starts with: the platform's variables, then `placement.environment`.

    Raises UserError for a variable of the user's that contradicts what the platform needs, naming both values.
    """
    needed, own = platform.environment(role, config), dict(config.placement.environment)
    for name, value in own.items():
        if not NAME.fullmatch(name):
            raise UserError(f"placement.environment.{name}: {name!r} is no name of a variable: letters, digits and underscores, not a digit first")
        refuse(platform, name, value, needed, f"placement.environment.{name}", "take it out")
    if platform.visible_devices_variable in own:
        raise UserError(
            f"placement.environment.{platform.visible_devices_variable}: vime gives each process its devices. Set the variable outside, before `vime train`, "
            "to say which devices a run may use"
        )
    return needed | own


def check_outer(platform: Platform, config: Any, outer: Mapping[str, str] | None = None) -> None:
    """Raises UserError where the environment `vime` itself was started in contradicts what its processes need: workers would inherit one or the other."""
    outer = os.environ if outer is None else outer
    for role in ROLES:
        for name, needed in platform.environment(role, config).items():
            if name in outer and name not in FREE and role != "driver":
                refuse(platform, name, outer[name], {name: needed}, f"environment variable {name}", f"unset it, or start with {name}={needed}")


def refuse(platform: Platform, name: str, value: str, needed: Mapping[str, str], where: str, mend: str) -> None:
    if name in needed and name not in FREE and str(value) != needed[name]:
        raise UserError(f"{where}: {value!r} contradicts what {platform.name} needs for this run ({name}={needed[name]}): {mend}")


def engine_options(platform: Platform, config: Any) -> dict[str, Any]:
    """The `vllm:` block over the platform's own options; blocks within (`additional_config`) are joined key by key."""
    given = {key.replace("-", "_"): value for key, value in config.vllm.items()}
    out: dict[str, Any] = dict(platform.engine_options(config))
    for key, value in given.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = {**out[key], **value} if both else value
    return out
