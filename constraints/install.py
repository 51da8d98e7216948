"""Builds the environment that was tested: `python constraints/install.py` makes .venv and installs exactly what constraints/cpu.txt pins.

Standard library only, because it runs before anything is installed. Called by the Makefile; a second call with nothing changed returns at once.

The pins are installed with --no-deps: the file is the whole tested set, so there is nothing left to resolve, and four packages that vLLM's CPU build
asks for stay away. torchvision, torchaudio, torchcodec and triton come from the Python package index as wheels for CUDA and, beside a CPU build of
torch, break `from vllm import LLM` (`operator torchvision::nms does not exist`). No text model needs them.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = (3, 11)
NEEDED_GB = 5
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")

# What pip's output shows -> what to do about it.
HINTS = {
    r"No matching distribution found for torch==": "torch's CPU build is not on the package index in use. PyTorch serves it from an index of its own; "
    "name that one beside yours:\n  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test",
    r"error: command '.*(cc|gcc|clang).*' failed|Python\.h|No such file or directory: '(gcc|cc)'": "pycosat, which reasoning-gym needs, is compiled here: "
    "install a C compiler and Python's headers (Debian, Ubuntu: gcc libc6-dev python3.11-dev)",
    r"No space left on device": f"the environment takes about {NEEDED_GB} GB: free some space, or move the checkout",
    r"\(from versions: none\)|NewConnectionError|name resolution|ProxyError": "no package index that pip is configured for has it, or none can be reached: "
    "check the network, PIP_INDEX_URL and HTTPS_PROXY",
}


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when the environment is ready; 1 with one clear message when it is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--pins", type=Path, default=ROOT / "constraints" / "cpu.txt")
    options = parser.parse_args(argv)
    if sys.version_info[:2] != PYTHON:
        have = f"{sys.version.split()[0]} ({sys.executable})"
        fail(f"the tested set is for Python {PYTHON[0]}.{PYTHON[1]}, this is {have}: name another one with `make PYTHON=/path/to/python3.11 …`")
    with Path(ROOT / "constraints" / "install.py").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two `make` at once: the second waits and finds the work done
        return install(options.venv, options.pins)


def install(place: Path, pins: Path) -> int:
    """Make `place` hold the pins and this checkout; nothing is done when it does already."""
    stamp = place / ".installed"
    wanted = fingerprint(pins)
    if stamp.is_file() and stamp.read_text() == wanted and usable(place):
        stamp.touch()
        return 0
    begin = time.monotonic()
    if not usable(place):
        create(place)
    stamp.unlink(missing_ok=True)
    lines = [line for line in pins.read_text().splitlines() if line and not line.startswith("#")]
    total = len(lines)
    first = [line for line in lines if line.startswith("torch==")]  # the one that is most often missing is asked for first
    say(f"installing {total} pinned packages into {place.name} (a few minutes the first time, about {NEEDED_GB} GB)")
    pip(place, ["install", "--no-deps", *first, "--requirement", str(pins)], total)
    pip(place, ["install", "--no-deps", "--editable", str(ROOT)], 1)
    present = [name for name in UNWANTED if any(place.glob(f"lib/python*/site-packages/{name}-*.dist-info"))]
    if present:
        pip(place, ["uninstall", "--yes", *present], len(present))
    stamp.write_text(wanted)
    say(f"environment ready after {time.monotonic() - begin:.0f} s: {place.name}")
    return 0


def fingerprint(pins: Path) -> str:
    """A digest of what the environment is made from: pins, pyproject.toml without its tools' settings, and where the checkout lies."""
    import tomllib  # not at the top: an older Python must get as far as the message that names it

    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = {"build": declared["build-system"], "project": declared["project"], "setuptools": declared["tool"]["setuptools"]}
    parts = [pins.read_text(), json.dumps(package, sort_keys=True), str(ROOT)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def usable(place: Path) -> bool:
    """Whether `place` is a virtual environment whose Python starts, has the right version and has pip."""
    python = place / "bin" / "python"
    check = f"import sys, pip; sys.exit(sys.version_info[:2] != {PYTHON})"
    return python.exists() and subprocess.run([python, "-c", check], capture_output=True).returncode == 0


def create(place: Path) -> None:
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < NEEDED_GB:
        fail(f"{free:.1f} GB free where the checkout lies; the environment takes about {NEEDED_GB} GB")
    say(f"making {place.name} with Python {sys.version.split()[0]}")
    try:
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(place)
    except subprocess.CalledProcessError as error:
        fail(f"Python's venv module could not make {place} ({error}): on Debian and Ubuntu install python3.11-venv")


def pip(place: Path, arguments: list[str], total: int) -> None:
    """Run pip, its words kept in `<venv>/install.log`, a short progress shown. Exits with the end of the log and a mend when pip fails."""
    log = place / "install.log"
    command = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    if arguments[0] == "install":
        command += ["--progress-bar", "off"]
    lines: list[str] = []
    with log.open("a") as out, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout is not None
        progress = Progress(total, live=sys.stdout.isatty())
        for line in process.stdout:
            out.write(line)
            lines.append(line)
            progress.line(line)
        progress.end()
    if process.returncode != 0:
        text = "".join(lines)
        hint = next((mend for pattern, mend in HINTS.items() if re.search(pattern, text)), f"the whole of pip's output is in {log}")
        print("".join(lines[-15:]), file=sys.stderr)
        fail(f"pip {arguments[0]} failed (exit {process.returncode}): {hint}")


class Progress:
    """Says how far pip is: one line rewritten on a terminal (`live`); elsewhere a line every tenth of the way and one for each large download."""

    def __init__(self, total: int, *, live: bool):
        self.total, self.live, self.count = total, live, 0

    def line(self, line: str) -> None:
        words = line.split()
        if words[:1] == ["Collecting"] or words[:3] == ["Requirement", "already", "satisfied:"]:
            self.count += 1
            self.show(f"{self.count}/{self.total} {words[1] if words[0] == 'Collecting' else words[3]}", lasting=self.count % (self.total // 10 or 1) == 0)
        elif words[:1] == ["Downloading"]:
            self.show(" ".join(words)[:100], lasting=bool(re.search(r"\((\d{3,}(\.\d+)? MB|[\d.]+ GB)\)", line)))
        elif words[:2] == ["Installing", "collected"]:
            self.show("unpacking (a minute or so)", lasting=self.total > 1)

    def show(self, text: str, *, lasting: bool) -> None:
        if self.live:
            print(f"\r  {text:<100.100}", end="", flush=True)
        elif lasting and self.total > 1:
            print(f"  {text}", flush=True)

    def end(self) -> None:
        if self.live:
            print("\r" + " " * 102 + "\r", end="", flush=True)


def say(text: str) -> None:
    print(f"vime set-up: {text}", flush=True)


def fail(text: str) -> None:
    print(f"vime set-up: {text}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
