"""Cell ids: `<model>.<hardware>.<mode>[@<variant>]`, split from the right because model names contain dots; and the key of a cell in paths and step names.

A mode is settings joined by `+` in the canonical order of `modes.yaml`. This file knows the spelling only; which names exist is `matrix/loader.py`'s to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PART = r"[a-z0-9]+(?:-[a-z0-9]+)*"  # a hardware, setting or variant name
MODEL = rf"{PART}(?:\.{PART})*"
PART_PATTERN = re.compile(PART)
MODEL_PATTERN = re.compile(MODEL)
ID_PATTERN = re.compile(rf"(?P<model>{MODEL})\.(?P<hardware>{PART})\.(?P<mode>{PART}(?:\+{PART})*)(?:@(?P<variant>{PART}))?")

MAX_KEY = 100  # Buildkite's limit for a step key


@dataclass(frozen=True, order=True)
class CellId:
    """A cell's name in its four parts; `settings` in the order written."""

    model: str
    hardware: str
    settings: tuple[str, ...]
    variant: str | None = None

    @property
    def mode(self) -> str:
        return "+".join(self.settings)

    def __str__(self) -> str:
        return f"{self.model}.{self.hardware}.{self.mode}" + (f"@{self.variant}" if self.variant else "")


def parse(text: str) -> CellId:
    """The parts of a cell id. Raises ValueError, with the form and the offending part, for anything else."""
    match = ID_PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a cell id: {_complaint(text)}")
    return CellId(match["model"], match["hardware"], tuple(match["mode"].split("+")), match["variant"])


def _complaint(text: str) -> str:
    form = "<model>.<hardware>.<mode>[@<variant>], lower case, e.g. qwen3-4b.cpu.colocate"
    if text != text.lower():
        return f"write it in lower case, '{text.lower()}'"
    if text.count("@") > 1:
        return f"more than one '@'; the form is {form}"
    stem = text.split("@")[0]
    if stem.count(".") < 2:
        return f"fewer than three parts; the form is {form}"
    bad = sorted(set(re.sub(r"[a-z0-9.@+-]", "", text)))
    return f"{' '.join(bad)} cannot stand in it; the form is {form}" if bad else f"the form is {form}"


def key(cell_id: str | CellId) -> str:
    """The cell's name for paths and Buildkite step keys: `+` becomes `_`, `@` becomes `__`. No name holds an underscore, so no two ids share a key.

    Raises ValueError for a text that is not a cell id and for a key above 100 characters.
    """
    cell = parse(cell_id) if isinstance(cell_id, str) else cell_id
    result = str(cell).replace("+", "_").replace("@", "__")
    if len(result) > MAX_KEY:
        raise ValueError(f"the key of '{cell}' has {len(result)} characters; {MAX_KEY} are allowed: shorten the model's or the variant's name")
    return result
