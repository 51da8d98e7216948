"""What this machine offers of a declared hardware: which devices are here, which of them the caller allowed, and why a cell cannot run here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from e2e.leases import LeaseError
from matrix.declarations import Hardware

QUERY_S = 20.0
GIB = 1 << 30
SLOTS_PER_CORE = 2  # CPU runs wait for each other at every step: twice the cores keep them busy, more only makes all slower


@dataclass(frozen=True)
class Offer:
    """Devices that may be leased here, or why there is none."""

    devices: tuple[int, ...]
    lacks: str | None = None


@dataclass(frozen=True)
class Found:
    """What a probe of the machine saw: number of devices, and the names their driver gives them where it says so."""

    count: int
    names: tuple[str, ...] = ()
    how: str = ""  # where it looked, for the reason of a cell that cannot run


Probe = Callable[[str], Found]


def offer(hardware: Hardware, environment: Mapping[str, str] = os.environ, probe: Probe | None = None) -> Offer:
    """The devices of `hardware` that a run may take here. Raises LeaseError for a visible-devices variable that cannot be meant."""
    if hardware.platform == "cpu":
        return _slots(hardware)
    found = (probe or probed)(hardware.platform)
    if not found.count:
        return Offer((), f"no {hardware.title} here: {found.how}")
    wrong = _other_kind(hardware, found)
    if wrong:
        return Offer((), wrong)
    return Offer(allowed(hardware.visible_devices, environment, found.count))


def allowed(variable: str | None, environment: Mapping[str, str], count: int) -> tuple[int, ...]:
    """Of devices 0 … count-1 those that the caller's visible-devices variable names: all where it is not set, none where it is empty."""
    text = environment.get(variable) if variable else None
    if text is None:
        return tuple(range(count))
    words = [word.strip() for word in text.split(",") if word.strip()]
    bad = next((word for word in words if not (word.isascii() and word.isdigit()) or int(word) >= count), None)
    if bad is not None:
        raise LeaseError(f"{variable}={text}: '{bad}' is none of the devices 0 to {count - 1} of this machine: write their numbers, separated by commas")
    if len(set(words)) < len(words):
        raise LeaseError(f"{variable}={text}: a device is named twice: write each once")
    return tuple(sorted(int(word) for word in words))


def _other_kind(hardware: Hardware, found: Found) -> str | None:
    """A message when the driver names devices and one is none of the declared kind."""
    wanted = hardware.device_names
    strange = [name for name in found.names if wanted and not any(_is_called(name, part) for part in wanted)]
    return f"this machine has {strange[0]}, not {' or '.join(wanted)} ({found.how})" if strange else None


def _is_called(name: str, part: str) -> bool:
    """Whether a driver's name is of a declared chip, in whole words, or of a bin of it: a 910B3 is a 910B, and an Ascend910B is no Ascend910."""
    chip = re.sub(r"ascend[ _-]?(?=\d)", "", part.lower())
    marked = "[0-9]?" if chip[-1:].isalpha() else ""
    return re.search(rf"(?<![a-z0-9]){re.escape(chip)}{marked}(?![a-z0-9])", re.sub(r"ascend[ _-]?(?=\d)", " ", name.lower())) is not None


def _slots(hardware: Hardware) -> Offer:
    """A CPU's devices are slots, as many as memory and cores carry: holding a slot is holding its share of both."""
    fit = [hardware.devices_per_node, SLOTS_PER_CORE * max(cores(), 1)]
    if hardware.device_memory_gib:
        fit.append(int(memory_gib() // hardware.device_memory_gib))
    if not min(fit):
        return Offer((), f"this machine has {memory_gib():.1f} GiB; one slot of {hardware.name} takes {hardware.device_memory_gib:g}")
    return Offer(tuple(range(min(fit))))


def wait_for_memory(gib: float, holder: str, timeout: float, waiting: Callable[[str], None]) -> None:
    """Until `gib` are free: other work on the machine holds no lease. Raises LeaseError after `timeout` seconds."""
    end, said = time.monotonic() + timeout, False
    while (free := free_gib()) < gib:
        if time.monotonic() > end:
            raise LeaseError(f"{holder} waited {timeout:.0f} s for {gib:g} GiB of memory in vain; {free:.1f} GiB are free")
        if not said:
            waiting(f"waiting for {gib:g} GiB of memory; {free:.1f} GiB are free")
            said = True
        time.sleep(1.0)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def memory_gib() -> float:
    """Memory of the machine, or of the container where that is less."""
    limit = _cgroup("memory.max")
    return min(psutil.virtual_memory().total, limit or float("inf")) / GIB


def free_gib() -> float:
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    free = psutil.virtual_memory().available
    return (min(free, limit - used) if limit and used else free) / GIB


def _cgroup(name: str) -> int | None:
    file = Path("/sys/fs/cgroup") / name
    text = file.read_text().strip() if file.is_file() else ""
    return int(text) if text.isdigit() else None


@cache
def probed(platform: str) -> Found:
    """Devices of `cuda` or `npu` that the kernel and the vendor's tool show; asked once a process, and without importing torch."""
    if platform == "cuda":
        names = [line.strip() for line in _said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines() if line.strip()]
        return Found(len(names), tuple(names), "nvidia-smi shows no device" if not names else "nvidia-smi")
    nodes = [path for path in Path("/dev").glob("davinci*") if path.name.removeprefix("davinci").isdigit()]
    listed = [line.split() for line in _said("npu-smi", "info", "-m").splitlines()[1:]] if nodes else []
    # Columns: NPU, chip, logical id (none for a controller), name.
    names = [" ".join(words[3:]) for words in listed if len(words) > 3 and words[2].isdigit()]
    return Found(len(nodes), tuple(names), "there is no /dev/davinci<N>" if not nodes else "npu-smi info -m")


def _said(*command: str) -> str:
    """What a vendor's tool prints; nothing where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout if done.returncode == 0 else ""
