"""Which platforms there are, and which one this machine is. Third parties add theirs by an entry point in the group `vime.platforms`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from functools import cache
from importlib.metadata import entry_points

from vime.errors import UserError
from vime.platforms.base import Platform

GROUP = "vime.platforms"
BUILT_IN = {
    "cpu": "vime.platforms.cpu:CpuPlatform",
    "cuda": "vime.platforms.cuda:CudaPlatform",
    "npu": "vime.platforms.npu:NpuPlatform",
}


def names() -> list[str]:
    """Every platform that `get` knows, sorted: the ones shipped in this build and those of installed entry points."""
    shipped = {name for name, target in BUILT_IN.items() if importlib.util.find_spec(target.partition(":")[0])}
    return sorted(shipped | {point.name for point in entry_points(group=GROUP)})


@cache
def get(name: str) -> Platform:
    """The platform called `name`, or the detected one for `auto`. One instance a process.

    Raises `UserError` naming the platforms there are.
    """
    if name == "auto":
        return get(detect())
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"platform: no platform {name!r} here (have {', '.join(names())}){hint} Set `platform:` or --platform to one of them.")
    return load(target_of(name))()


def detect() -> str:
    """The accelerator that is here and whose packages are installed, else `cpu`: by device nodes and installed distributions, no vendor's package is imported.

    Raises `UserError` where there is more than one.
    """
    found = [name for name in names() if name != "cpu" and get(name).available()]
    if len(found) > 1:
        raise UserError(f"platform: auto, but this machine could be {' or '.join(found)}: set `platform:` or --platform to the one you mean")
    return found[0] if found else "cpu"


def for_device(device_type: str) -> Platform:
    """The platform whose devices torch calls `device_type`; a shipped one before others. Raises `UserError` when there is none."""
    for name in sorted(names(), key=lambda name: (name not in BUILT_IN, name)):
        if get(name).device_type == device_type:
            return get(name)
    raise UserError(f"no platform here has devices of torch's type {device_type!r} (have {', '.join(names())})")


def target_of(name: str) -> str:
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.value
    return BUILT_IN[name]


def load(target: str) -> type:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
