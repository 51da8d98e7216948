"""Comments of a pull request that start a build. What a comment may ask for is this short list; nothing of it reaches a shell."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matrix.problem import SelectionError

FORMS = "/vime run CELL…, /vime tier TIER [on HARDWARE…], /vime images NAME…"
WORD = re.compile(r"[a-z0-9][a-z0-9.+@-]*")


@dataclass(frozen=True)
class Asked:
    cells: tuple[str, ...] = ()
    tier: str | None = None
    hardware: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


def parse(comment: str) -> Asked:
    """The first line of a comment. Raises SelectionError with the forms for anything else."""
    lines = comment.strip().splitlines()
    words = lines[0].split() if lines else []
    bad = [word for word in words[1:] if not WORD.fullmatch(word)]
    if words[:1] != ["/vime"] or len(words) < 3 or bad:
        raise SelectionError(f"'{lines[0][:80] if lines else ''}' is no command{f' ({bad[0][:40]} is no name)' if bad else ''}: {FORMS}")
    verb, rest = words[1], words[2:]
    if verb == "run":
        return Asked(cells=tuple(rest))
    if verb == "images":
        return Asked(images=tuple(rest))
    if verb == "tier" and (len(rest) == 1 or (len(rest) > 2 and rest[1] == "on")):
        return Asked(tier=rest[0], hardware=tuple(rest[2:]))
    raise SelectionError(f"/vime {verb}: {FORMS}")
