"""The reader protocol and how a value in a log becomes a number."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

from reports.model import Run

HEAD_BYTES = 65536  # how much of a file a reader may look at to recognise it

_NON_FINITE_WORDS = {
    "nan": math.nan,
    "-nan": math.nan,
    "+nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}


class Reader(Protocol):
    """Reads one format. `priority`: lower is asked first. `sniff` must be cheap and must not raise; `read` raises UnreadableRun."""

    name: str
    priority: int

    def sniff(self, path: Path, head: bytes) -> bool: ...

    def read(self, path: Path) -> Run: ...


def as_number(value: Any) -> float | None:
    """The number a logged value stands for, or None when it stands for none.

    Numbers, numbers as text, and the usual spellings of NaN and infinity count; true, false, null, lists and other text do not.
    """
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    if not isinstance(value, str):
        return None
    word = value.strip()
    if word.lower() in _NON_FINITE_WORDS:
        return _NON_FINITE_WORDS[word.lower()]
    try:
        number = float(word)
    except ValueError:
        return None
    return number if "_" not in word else None
