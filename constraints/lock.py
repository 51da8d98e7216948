"""Writes constraints/cpu.txt and constraints/dev.txt anew from the environment this runs in: `make lock`, after its tests passed.

cpu.txt is everything installed (vime[cpu,dev]); dev.txt the part of it that vime[dev] needs: the harness and its tests, without torch.
The comment lines at the top are kept.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parent
ONLY_X86 = re.compile(r"^intel-")


def main() -> None:
    freeze = [sys.executable, "-m", "pip", "--disable-pip-version-check", "freeze", "--all", "--exclude-editable"]
    frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines()
    frozen = [pin for pin in frozen if not pin.startswith("pip==")]  # the one that installs the rest
    pins = [f'{pin} ; platform_machine == "x86_64"' if ONLY_X86.match(pin) else pin for pin in frozen]
    write(FOLDER / "cpu.txt", pins)
    wanted = needed("vime", frozenset({"dev"}))
    write(FOLDER / "dev.txt", [pin for pin in pins if canonicalize_name(pin.partition("==")[0]) in wanted])


def write(path: Path, pins: list[str]) -> None:
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    path.write_text("\n".join(head + pins) + "\n")
    print(f"{path.name}: {len(pins)} packages")


def needed(name: str, extras: frozenset[str]) -> set[str]:
    """Canonical names of everything that `name[extras]` asks for, by the metadata of what is installed."""
    found: set[str] = set()
    todo, seen = [(name, extras)], set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""})):
                found.add(canonicalize_name(requirement.name))
                todo.append((requirement.name, frozenset(requirement.extras)))
    return found


if __name__ == "__main__":
    main()
