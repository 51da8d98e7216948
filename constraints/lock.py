"""Writes constraints/cpu.txt anew from the environment this runs in: `make lock`, after its tests passed. The comment lines at the top are kept."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).resolve().parent / "cpu.txt"
ONLY_X86 = re.compile(r"^intel-")


def main() -> None:
    freeze = [sys.executable, "-m", "pip", "--disable-pip-version-check", "freeze", "--all", "--exclude-editable"]
    frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout.splitlines()
    head = [line for line in PINS.read_text().splitlines() if line.startswith("#")]
    frozen = [pin for pin in frozen if not pin.startswith("pip==")]  # the one that installs the rest
    pins = [f'{pin} ; platform_machine == "x86_64"' if ONLY_X86.match(pin) else pin for pin in frozen]
    PINS.write_text("\n".join(head + pins) + "\n")
    print(f"{PINS.name}: {len(pins)} packages")


if __name__ == "__main__":
    main()
