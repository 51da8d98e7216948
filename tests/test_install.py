"""What constraints/install.py says when the environment cannot be made, and when it has nothing to do."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "constraints" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_failing_pip_ends_with_the_mend(install: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # whatever this machine's pip is configured for
    place = tmp_path / "environment"
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(SystemExit, match="1"):
        install.pip(place, ["install", "--no-index", "--find-links", str(tmp_path), "torch==2.13.0+other"], 1)
    said = capsys.readouterr().err
    assert "No matching distribution found for torch==2.13.0+other" in said
    assert "PyTorch serves it from an index of its own" in said
    assert "No matching distribution" in (place / "install.log").read_text()


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("error: [Errno 2] No such file or directory: 'gcc'\nERROR: Failed building wheel for pycosat", "C compiler"),
        ("src/pycosat.c:5:10: fatal error: Python.h: No such file or directory", "Python's headers"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "free some space"),
        ("ERROR: Could not find a version that satisfies the requirement numpy==2.3.5 (from versions: none)", "check the network"),
    ],
)
def test_known_failures_have_a_mend(install: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, words: str) -> None:
    place = tmp_path / "environment"
    (place / "bin").mkdir(parents=True)
    python = place / "bin" / "python"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(SystemExit):
        install.pip(place, ["install", "x"], 1)
    assert words in capsys.readouterr().err


def test_another_python_is_refused_by_name(install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(install, "PYTHON", (3, 99))
    with pytest.raises(SystemExit, match="1"):
        install.main([])
    assert "the tested set is for Python 3.99" in capsys.readouterr().err


def test_too_little_disk_is_said_before_anything_is_made(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "NEEDED_GB", 10**9)
    with pytest.raises(SystemExit, match="1"):
        install.create(tmp_path / "new")
    assert "GB free" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_environment_that_holds_the_pins_is_left_alone(install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("numpy==2.3.5\n")
    place = tmp_path / "environment"
    place.mkdir()
    (place / ".installed").write_text(install.fingerprint(pins))
    monkeypatch.setattr(install, "usable", lambda place: True)
    monkeypatch.setattr(install, "pip", lambda *arguments: pytest.fail("pip was called"))
    assert install.install(place, pins) == 0
    pins.write_text("numpy==2.3.6\n")
    with pytest.raises(pytest.fail.Exception):
        install.install(place, pins)
    assert not (place / ".installed").exists(), "an installation that ends half-way must not look like a whole one"


def test_a_folder_without_a_working_python_is_not_usable(install: ModuleType, tmp_path: Path) -> None:
    assert not install.usable(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(tmp_path / "gone")
    assert not install.usable(tmp_path)


def test_progress_is_shown_off_a_terminal(install: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    progress = install.Progress(20, live=False)
    for number in range(20):
        progress.line(f"Collecting package{number}==1.0 (from -r cpu.txt (line {number}))\n")
        progress.line("  Downloading small-1.0-py3-none-any.whl (12.1 MB)\n")
    progress.line("  Downloading torch-2.13.0-cp311.whl (190.1 MB)\n")
    progress.line("Installing collected packages: a, b\n")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  2/20 package1==1.0"
    assert lines[9:] == ["  20/20 package19==1.0", "  Downloading torch-2.13.0-cp311.whl (190.1 MB)", "  unpacking (a minute or so)"]


def test_make_explains_itself() -> None:
    done = subprocess.run(["make", "--no-print-directory"], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0
    for target in ("make e2e", "make test", "make lint", "make contracts", "make clean"):
        assert target in done.stdout
