"""Images and install scripts, as far as a machine without an engine can check them: lint, files that are copied, pins, the vendors' facts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ci" / "docker"
DOCKERFILES = sorted(FOLDER.glob("Dockerfile.*"))
SCRIPTS = [*sorted(FOLDER.glob("*.sh")), ROOT / ".ci" / "run"]


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, rest) with continued lines joined, comments left out."""
    text = re.sub(r"(?m)^\s*#.*\n", "", path.read_text()).replace("\\\n", " ")
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_there_is_an_image_for_each_platform() -> None:
    assert {path.suffix for path in DOCKERFILES} == {".cpu", ".cuda", ".npu"}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_are_clean(path: Path) -> None:
    done = subprocess.run([tool("hadolint"), str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean(path: Path) -> None:
    done = subprocess.run([tool("shellcheck"), str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_everything_that_is_copied_or_run_is_in_the_checkout(path: Path) -> None:
    sources = [name for word, rest in instructions(path) if word == "COPY" for name in rest.split()[:-1]]
    assert sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    run = " ".join(rest for word, rest in instructions(path) if word == "RUN")
    named = re.findall(r"(?:constraints|ci)/[\w./-]+", run)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    return dict(re.split("==", line, maxsplit=1) for line in lines if line and not line.startswith("#"))  # type: ignore[misc]


def test_every_pin_that_the_npu_script_asks_for_is_there() -> None:
    wanted = re.findall(r"\$\(pin ([\w-]+)\)", (FOLDER / "install-npu.sh").read_text())
    assert set(wanted) >= {"torch", "torch_npu", "vllm", "vllm-ascend", "triton-ascend"}
    assert set(wanted) - pins("npu.txt").keys() == set()


def test_a_missing_pin_and_a_missing_chip_are_said_before_anything_is_installed(tmp_path: Path) -> None:
    (tmp_path / "pip").write_text("#!/bin/sh\necho pip was called; exit 3\n")
    (tmp_path / "pip").chmod(0o755)
    (tmp_path / "pins.txt").write_text("torch==2.10.0\n")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = [str(FOLDER / "install-npu.sh"), str(tmp_path / "pins.txt")]
    done = subprocess.run(["bash", *script], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, "SOC_VERSION: set it to the chip" in done.stderr) == (1, True)
    done = subprocess.run(["bash", *script], capture_output=True, text=True, env=environment | {"SOC_VERSION": "ascend910b1"}, check=False)
    assert f"{tmp_path}/pins.txt has no torch_npu" in done.stderr
    done = subprocess.run(["bash", script[0]], capture_output=True, text=True, env=environment, check=False)
    assert "usage: install-npu.sh PINS" in done.stderr


def test_the_pins_of_the_npu_image_are_those_of_the_version_set() -> None:
    from ruamel.yaml import YAML

    sets = YAML(typ="safe").load((ROOT / "matrix" / "versions.yaml").read_text())["version_sets"]
    wanted = next(entry["versions"] for entry in sets if entry["name"] == "cann-91")
    have = pins("npu.txt")
    shared = wanted.keys() & have.keys()
    assert shared >= {"torch", "torch_npu", "vllm", "vllm-ascend", "megatron-core"}
    assert {name: have[name].split("+")[0] for name in shared} == {name: str(wanted[name]) for name in shared}
    arguments = dict(rest.split("=", 1) for word, rest in instructions(FOLDER / "Dockerfile.npu") if word == "ARG" and "=" in rest)
    assert arguments["CANN"] == str(wanted["cann"])


def test_hardware_files_name_dockerfiles_that_are_there() -> None:
    named = re.findall(r"dockerfile: ([\w./-]+)", "".join(path.read_text() for path in (ROOT / "matrix" / "hardware").glob("*.yaml")))
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
