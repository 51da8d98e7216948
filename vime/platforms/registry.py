"""Which platforms there are, and which one this machine is. Third parties add theirs by an entry point in the group `vime.platforms`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable
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
    return load(name)()


def detect() -> str:
    """The accelerator that is here and whose packages are installed, else `cpu`: by device nodes and installed distributions, no vendor's package is imported.

    A third party's platform that cannot be loaded is told on stderr and passed over. Raises `UserError` where there is more than one.
    """
    for problem in broken().values():
        print(f"platform: auto passes over {problem}", file=sys.stderr)
    found = [name for name in loadable() if name != "cpu" and present(name)]
    if len(found) > 1:
        raise UserError(f"platform: auto, but this machine could be {' or '.join(found)}: set `platform:` or --platform to the one you mean")
    return found[0] if found else "cpu"


def present(name: str) -> bool:
    """Whether this machine has the platform's devices. A third party's that fails to say is told on stderr, and is not there."""
    if name in BUILT_IN:
        return get(name).available()
    try:
        return bool(get(name).available())
    except Exception as error:  # noqa: BLE001  (its code is not ours, and another platform may be the one that is wanted)
        print(f"platform: auto passes over {name}: available() fails ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})", file=sys.stderr)
        return False


def for_device(device_type: str) -> Platform:
    """The platform whose devices torch calls `device_type`; a shipped one before others. Raises `UserError` when there is none."""
    for name in sorted(loadable(), key=lambda name: (name not in BUILT_IN, name)):
        if get(name).device_type == device_type:
            return get(name)
    raise UserError(f"no platform here has devices of torch's type {device_type!r} (have {', '.join(names())})")


def broken() -> dict[str, str]:
    """Third parties' platforms that cannot be had, and why: one line each, naming the entry point."""
    out = {}
    for name in names():
        if name not in BUILT_IN:
            try:
                get(name)
            except UserError as error:
                out[name] = str(error)
    return out


def loadable() -> list[str]:
    passed_over = broken()
    return [name for name in names() if name not in passed_over]


def target_of(name: str) -> str:
    """Where a platform's class is. A shipped platform is never another's: an entry point of its name would change what `cpu` means in every run."""
    return BUILT_IN.get(name) or next(point.value for point in entry_points(group=GROUP) if point.name == name)


def load(name: str) -> Callable[[], Platform]:
    """The class. Raises `UserError` for a third party's that cannot be imported or made: its code is not ours, so any exception of it is told in one line."""
    target = target_of(name)
    module, _, attribute = target.partition(":")
    if name in BUILT_IN:
        return getattr(importlib.import_module(module), attribute)
    try:
        made: Platform = getattr(importlib.import_module(module), attribute)()
        if made.name != name:
            raise ValueError(f"it calls itself {made.name!r}")
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise UserError(
            f"platform {name}: the entry point `{name} = {target}` of {GROUP} cannot be loaded ({reason}): mend or uninstall its package"
        ) from error
    return lambda: made
