"""What this machine has, as plain facts; `vime doctor` judges them.

Nothing heavy is imported: packages are read from their metadata, devices from their nodes and their vendor's tools.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from vime.npu_smi import Chip, Smi, parse

GIB = 2**30
NPU_CONTROL_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
CANN_PLACES = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann", "/usr/local/Ascend/latest")
TOOL_TIMEOUT_S = 20


@dataclass(frozen=True)
class Gpu:
    """What nvidia-smi says of one device; memory in MiB."""

    name: str
    total_mb: int | None
    used_mb: int | None
    driver: str | None


@dataclass(frozen=True)
class Accelerators:
    """Devices of one vendor. `tool` is its management tool's path, `devices` what that tool lists, `nodes` the device files there are."""

    tool: str | None = None
    devices: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    fault: str = ""  # what the tool answered when it failed
    chips: tuple[Chip, ...] = ()  # what npu-smi says of each
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    visible: tuple[str, ...] | None = None  # ids that the vendor's variable leaves visible; None: not set


@dataclass(frozen=True)
class Machine:
    """Facts that decide which platform can run. Sizes in GiB."""

    python: str = ""
    architecture: str = ""
    system: str = ""
    cores: int = 0  # this process may use
    cpu_flags: frozenset[str] = frozenset()
    memory_gib: float = 0.0  # the container's limit where there is one
    memory_free_gib: float = 0.0
    shm_gib: float | None = None  # /dev/shm; None: absent
    disk_free_gib: float = 0.0  # where runs are written: the working directory
    open_files: int = 0  # soft limit
    temporary: str = ""  # folder that Ray's sockets go to
    packages: dict[str, str] = field(default_factory=dict)  # normalised distribution name -> version
    nvidia: Accelerators = Accelerators()
    npu: Accelerators = Accelerators()
    cann: str | None = None  # CANN's folder


def read_machine() -> Machine:
    """The facts of this machine, in well under a second (a vendor's tool, where there is one, may take longer)."""
    limit, free = memory()
    return Machine(
        python=platform.python_version(),
        architecture=platform.machine(),
        system=platform.system(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_flags=cpu_flags(),
        memory_gib=limit,
        memory_free_gib=free,
        shm_gib=shutil.disk_usage("/dev/shm").total / GIB if Path("/dev/shm").is_dir() else None,
        disk_free_gib=shutil.disk_usage(".").free / GIB,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        temporary=tempfile.gettempdir(),
        packages=packages(),
        nvidia=nvidia(),
        npu=npu(),
        cann=cann_home(),
    )


def cann_home() -> str | None:
    """CANN's folder: $ASCEND_HOME_PATH, or where its installer puts it."""
    return next((place for place in (os.environ.get("ASCEND_HOME_PATH", ""), *CANN_PLACES) if place and Path(place).is_dir()), None)


def normal(name: str) -> str:
    """A distribution's name as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(path: list[str] | None = None) -> dict[str, str]:
    """Installed distributions; of two copies on the path the first counts, as for import."""
    out: dict[str, str] = {}
    for distribution in metadata.distributions(path=path or sys.path):
        if distribution.metadata["Name"]:
            out.setdefault(normal(distribution.metadata["Name"]), distribution.version)
    return out


def memory() -> tuple[float, float]:
    """(total, free) GiB: the machine's, or the control group's where that is less."""
    virtual = psutil.virtual_memory()
    total, free = virtual.total, virtual.available
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
        free = min(free, int(text) - int(used.read_text()))
    return total / GIB, free / GIB


def cpu_flags() -> frozenset[str]:
    info = Path("/proc/cpuinfo")
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return frozenset(match[1].split()) if match else frozenset()


def nvidia() -> Accelerators:
    nodes = tuple(sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*")))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Accelerators(nodes=nodes)
    code, text = _ask([tool, "--query-gpu=name,memory.total,driver_version,memory.used", "--format=csv,noheader"])
    gpus = read_gpus(text) if code == 0 else ()
    fault = "" if gpus else text if code else f"nvidia-smi lists no device: {(text.splitlines() or ['no output'])[0]}"
    return Accelerators(tool, tuple(text.splitlines()) if gpus else (), nodes, fault, gpus=gpus)


def read_gpus(text: str) -> tuple[Gpu, ...]:
    """The lines of nvidia-smi's query (name, memory.total, driver_version, memory.used). What a card or an old driver does not tell (`[N/A]`) is None."""
    out = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4:
            total, used = ((int(match[1]) if (match := re.match(r"(\d+) MiB", field)) else None) for field in (fields[1], fields[3]))
            out.append(Gpu(fields[0], total, used, None if fields[2].startswith("[") else fields[2]))
    return tuple(out)


def npu() -> Accelerators:
    nodes = sorted(path.name for path in Path("/dev").glob("davinci[0-9]*"))
    nodes += [name for name in NPU_CONTROL_NODES if Path("/dev", name).exists()]
    tool = shutil.which("npu-smi")
    if tool is None:
        return Accelerators(nodes=tuple(nodes))
    code, text = _ask([tool, "info"])
    found = parse(text) if code == 0 else Smi(None, ())
    fault = "" if found.chips else text if code else f"`npu-smi info` lists no chip: {(text.splitlines() or ['no output'])[0]}"
    ids = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    visible = None if ids is None else tuple(part.strip() for part in ids.split(","))
    return Accelerators(tool, tuple(str(chip.device) for chip in found.chips), tuple(nodes), fault, found.chips, found.driver, visible=visible)


def _ask(command: list[str]) -> tuple[int, str]:
    """Exit code and output of a vendor's tool; a tool that hangs (a lost driver does that) is ended and said to have."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TOOL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {TOOL_TIMEOUT_S} s"
    except OSError as error:
        return 126, str(error)
    text = (done.stdout if done.returncode == 0 else done.stderr.strip() or done.stdout).strip()
    return done.returncode, text or (f"{Path(command[0]).name} ended with code {done.returncode} and said nothing" if done.returncode else "")
