"""The reader protocol, what a caller may say about a reading, and how a value in a log becomes a number."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from reports.model import Run
from reports.readers.source import HEAD_BYTES, Source

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
_LONGEST_NUMBER = 64
METRIC_KEYS = ("key", "name", "tag", "metric")
_LEADING_ZERO = re.compile(r"[-+]?0\d")  # no program writes 05: what stands there has lost its decimal sign


@dataclass(frozen=True)
class Reading:
    """What the caller says about the files: all of it optional.

    format: a reader's name, instead of choosing by content. step: the column or key that holds the step, or "order" to number records by position.
    names: our metric name -> the source's, on top of the table. table: a TOML file that extends the table of names.
    cache: a folder of parsed curves (`reports.cache`), for local files.
    """

    format: str | None = None
    step: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    table: Path | None = None
    cache: Path | None = None


class Reader(Protocol):
    """Reads one format. `priority`: lower is asked first. `sniff` must be cheap and must not raise; `read` raises UnreadableRun.

    `read` returns one run, or several where one file holds several.
    """

    name: str
    priority: int

    def sniff(self, source: Source) -> bool: ...

    def read(self, source: Source, how: Reading) -> list[Run]: ...


def as_number(value: Any) -> float | None:
    """The number a logged value stands for, or None when it stands for none.

    Numbers, numbers as text, and the usual spellings of NaN and infinity count; true, false, null, lists and other text do not.
    """
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return None
    if not isinstance(value, str) or len(value) > _LONGEST_NUMBER:
        return None
    word = value.strip()
    if word.lower() in _NON_FINITE_WORDS:
        return _NON_FINITE_WORDS[word.lower()]
    if "_" in word or _LEADING_ZERO.match(word):
        return None
    try:
        return float(word)
    except ValueError:
        return None


def named_value(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """{"train/loss": 0.2} of a record of one metric, {"key": "train/loss", "value": 0.2}; None for any other."""
    name = next((record[one] for one in METRIC_KEYS if isinstance(record.get(one), str)), None) if "value" in record else None
    return None if name is None else {name: record["value"]}


def as_step(value: Any) -> int | None:
    """The step a value is, or None: a whole number, not negative; text, fractions and truth values are no steps."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def text_step(text: str) -> int | None:
    """The step a cell of a table or a log line holds: digits, with a fraction of zeros at most ("12", "12.0")."""
    if text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER:
        return as_step(int(text))
    number = as_number(text)
    return as_step(number) if number is not None and math.isfinite(number) and number < 1 << 53 else None


__all__ = ["HEAD_BYTES", "Reader", "Reading", "Source", "as_number", "as_step", "named_value", "text_step"]
