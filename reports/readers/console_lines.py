"""The grammar of log lines: progress bars, printed dicts, `key:value - key:value`, Megatron's `key: value |`. What does not fit entirely is no record."""

from __future__ import annotations

import re
from typing import Any

from reports.readers.base import as_number, text_step

ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
_BAR = re.compile(r"(?<![\d/.])(\d{1,9})/(\d{1,9}) \[")
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|infinity|NaN|Inf|Infinity)"
_WRAPPED = rf"(?:np\.|numpy\.|torch\.)?(?:float\d+|int\d+|tensor)\(\s*({_NUMBER})\s*(?:,[^()]*)?\)"
_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_GROUP = r"\[[^\[\]{}]*\]|\{[^{}]*\}|\([^()]*\)"
_ITEM = re.compile(rf"\s*({_STRING})\s*:\s*(?:({_NUMBER})(?=\s*[,}}])|{_WRAPPED}|({_STRING})|(None|null|True|False|true|false|{_GROUP}))\s*(,|\}})")
_LONGEST = 1 << 20


def bar_of(text: str) -> tuple[int, int] | None:
    """(count, total) of the last progress bar on the line."""
    if "/" not in text or " [" not in text:
        return None
    found = _BAR.findall(text)
    return (int(found[-1][0]), int(found[-1][1])) if found else None


def dict_of(text: str) -> dict[str, Any] | None:
    """The flat dict that `text` begins with, numbers as float and all else as text or None; None where it is not whole, or has a key twice.

    What stands behind the closing brace is another program's output and ignored, unless it is another dict.
    """
    if len(text) > _LONGEST:
        return None
    values: dict[str, Any] = {}
    at = 1
    while True:
        match = _ITEM.match(text, at)
        if match is None:
            return None
        name = match[1][1:-1]
        if name in values:
            return None
        number = match[2] or match[3]
        values[name] = as_number(number) if number else as_number(match[4][1:-1]) if match[4] and as_number(match[4][1:-1]) is not None else _other(match)
        at = match.end()
        if match[6] == "}":
            return values if "{" not in text[at:] else None
        if re.match(r"\s*\}", text[at:]):
            return values


def _other(match: re.Match[str]) -> Any:
    if match[4]:
        return match[4][1:-1] or "text"
    return None if match[5] in ("None", "null") else match[5]


def pairs_of(text: str, ended: bool) -> tuple[int, dict[str, Any]] | None:
    """(step, metrics) of `step:12 - a:0.1 - b:0.2` or `step: 12  a: 0.1  b: 0.2`; None where a key occurs twice (two lines in one)."""
    parts = re.split(r"\s+-\s+", text.strip()) if " - " in text else re.split(r"\s{2,}", text.strip())
    label, _, digits = parts[0].partition(":")
    step = text_step(digits)
    if step is None or not label.lower().endswith("step"):
        return None
    values: dict[str, Any] = {}
    for part in parts[1:] if ended else parts[1:-1]:  # the last value of a torn line may be cut
        name, colon, value = part.rpartition(":")
        name = name.strip()
        if not colon or not name or ":" in name or name in values or (name.lower().endswith("step") and name.lower() in ("step", "global_step")):
            return None
        values[name] = value.strip()
    return step, values


def megatron_of(text: str, ended: bool) -> dict[str, Any] | None:
    """Metrics of ` consumed samples: 12 | lm loss: 1.09E+01 | grad norm: 1.2 |`; None where a key occurs twice."""
    values: dict[str, Any] = {}
    cells = text.split("|")
    for cell in cells if ended and not cells[-1].strip() else cells[:-1]:
        name, colon, value = cell.rpartition(":")
        if not cell.strip():
            continue
        name = name.strip()
        if not colon or not name or ":" in name or name in values:
            return None
        values[name] = value.strip()
    return values
