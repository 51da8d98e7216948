"""How pages write small things: class names, days, cell ids, ranges of seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from markupsafe import Markup, escape


@cache
def css_of(word: str) -> str:
    """A class name: `NO_BASELINE` and `no baseline` are `no-baseline`; `passed (exactness)` is `passed-exactness`."""
    return "".join(char if char.isalnum() else "-" for char in str(word).lower().replace("(", "").replace(")", "")).strip("-")


def day(iso: str | None) -> str:
    """`2026-11-30 19:20` of an ISO time."""
    return (iso or "")[:16].replace("T", " ")


def breakable(cell_id: str) -> Markup:
    """A cell id that may break after a dot or a plus."""
    return Markup(str(escape(cell_id)).replace(".", ".<wbr>").replace("+", "+<wbr>"))


def ranges(numbers: Sequence[int]) -> str:
    """`100–102, 105` for 100, 101, 102, 105."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)
