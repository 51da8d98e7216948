"""Every command of docs/npu.md, in the form that a machine without NPUs can run: planned, resolved, or checked against the files and options it names."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "npu.md"
BIN = Path(sys.executable).parent
HOST = ("npu-smi", "ls", "docker run")  # what only the host has


def commands() -> list[str]:
    blocks = re.findall(r"(?ms)^```\n(.*?)^```", PAGE.read_text())
    return [re.sub(r"\s{2,}#.*$", "", line) for block in blocks for line in block.splitlines()]


def run(words: list[str], code: int) -> str:
    program = [sys.executable, *words[1:]] if words[0] == "python" else [str(BIN / words[0]), *words[1:]]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def build_arguments(path: Path) -> set[str]:
    return set(re.findall(r"(?m)^ARG (\w+)", path.read_text()))


@pytest.mark.parametrize("command", [line for line in commands() if not line.startswith(HOST)])
def test_commands_of_the_guide_work_as_far_as_they_can_here(command: str, tmp_path: Path) -> None:
    words = shlex.split(command.replace("$HEAD_IP", "10.0.0.1"))
    match words:
        case ["python", "-m", "matrix", *_]:
            run(words, 0)
        case ["pytest", *_]:
            assert "NOT_RUN here" in run(words if "--plan" in words else [*words, "--plan"], 0)
        case ["vime", "doctor", *rest]:
            assert "npu: not ready" in run(["vime", "doctor", *[word for word in rest if word != "--probe"]], 1)
        case ["vime", "train", "cell.yaml", *rest]:
            cell = tmp_path / "cell.yaml"
            cell.write_text(run(["python", "-m", "matrix", "show", "qwen3-4b.a3.non-colocate"], 0))
            shown = run(["vime", "config", "show", str(cell), *rest, "--changed"], 0)
            assert "placement.nodes" in shown
            assert "bond0" in shown
        case ["ray", "start", *options]:
            known = run(["ray", "start", "--help"], 0)
            assert [option for option in options if option.split("=")[0] not in known] == []
        case ["docker", "build", "-f", file, *rest]:
            given = {rest[index + 1].split("=")[0] for index, word in enumerate(rest) if word == "--build-arg"}
            assert given <= build_arguments(ROOT / file)
        case ["make", target]:
            assert re.search(rf"(?m)^{target}:", (ROOT / "Makefile").read_text())
        case ["export", *_]:
            assert all("=" in word for word in words[1:])
        case _:
            raise AssertionError(f"no way to check {command!r} is known: add one")


def test_files_that_the_guide_names_are_there() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"`((?:docs|examples|tests|ci|constraints|matrix)/[\w./-]+)`", text)) | set(re.findall(r"ci/docker/[\w.-]+", text))
    assert len(named) > 6
    assert sorted(name for name in named if not (ROOT / name.rstrip(".")).exists()) == []


def test_the_scripts_of_the_schedulers_read() -> None:
    script = ROOT / "examples" / "slurm-two-nodes.sh"
    assert subprocess.run([str(BIN / "shellcheck"), str(script)], capture_output=True, text=True, check=False).stdout == ""
    service, job = YAML(typ="safe").load_all((ROOT / "examples" / "kubernetes-two-nodes.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    (shell,) = pod["containers"][0]["args"]
    checked = subprocess.run([str(BIN / "shellcheck"), "--shell=bash", "-"], input=shell, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
