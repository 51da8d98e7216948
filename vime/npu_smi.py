"""Reads the table that `npu-smi info` prints, of every generation seen so far: one chip an NPU (A2), two chips with physical ids (A3), inference cards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")


@dataclass(frozen=True)
class Chip:
    """One device as ASCEND_RT_VISIBLE_DEVICES numbers it. Memory in MiB; None where a sick device does not tell (`NA`)."""

    device: int
    npu: int
    chip: int
    name: str
    health: str
    bus: str
    used_mb: int | None
    total_mb: int | None


@dataclass(frozen=True)
class Smi:
    """What the tool said: the driver's version and its chips, by device number."""

    driver: str | None
    chips: tuple[Chip, ...]


def parse(text: str) -> Smi:
    """Read the tool's output. Rows that are not understood are left out; a text without any chip has none (the caller shows the text)."""
    version = VERSION.search(text)
    chips: list[Chip] = []
    above: tuple[int, str, str] | None = None  # NPU, name and health of the first of a chip's two rows
    physical = re.search(r"\|\s*Chip\s+(?:Phy-ID|Device)\s*\|", text) is not None
    for first, second, third in rows(text):
        if not first or not first[0].isdigit():
            if first[:1] in (["Chip"], ["NPU"]) and "Process" in " ".join(second):
                break  # the table of processes has rows of the same look
            continue
        if above is None or not re.fullmatch(r"[0-9A-Fa-f:.xX]+|NA", second[0] if second else ""):
            above = (int(first[0]), " ".join(first[1:]), " ".join(second)) if len(first) > 1 else None
            continue
        usage = memory(" ".join(third))
        if usage is not None:
            number = int(first[1]) if physical and len(first) > 1 and first[1].isdigit() else above[0]
            chips.append(Chip(number, above[0], int(first[0]), above[1], above[2], second[0], *usage))
        above = None
    return Smi(version[2] if version else None, tuple(sorted(chips, key=lambda chip: chip.device)))


def memory(cells: str) -> tuple[int, int] | tuple[None, None] | None:
    """(used, total) of the last kind of memory that the card has; Nones where it does not tell; None for a row that was torn."""
    found = [(int(used), int(total)) for used, total in USAGE.findall(cells) if int(total)]
    return found[-1] if found else (None, None) if re.search(r"\bNA\s*/\s*NA\b", cells) else None


def rows(text: str) -> Iterator[tuple[list[str], list[str], list[str]]]:
    """The words of each row's three cells."""
    for line in text.splitlines():
        cells = [cell.split() for cell in line.strip().strip("|").split("|")]
        if line.strip().startswith("|") and len(cells) >= 3:
            yield cells[0], cells[1], [word for cell in cells[2:] for word in cell]
