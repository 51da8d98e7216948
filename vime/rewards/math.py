"""Mathematical equality of an answer with its reference, by math-verify.

What is graded: the content of the last `\\boxed{…}` when there is one, otherwise the last expression math-verify finds in the text. A box that never
closes (the answer was cut inside it) is no answer. A reference that cannot be parsed is an error of the data: the sample is marked, never paid.
"""

from __future__ import annotations

import logging
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

# The pool limits the time of a sample; math-verify's own timers would take the same signal. It warns about that once a process.
logging.getLogger("math_verify").setLevel(logging.ERROR)

BOX = "\\boxed"


def math(text: str, label: Any, metadata: dict[str, Any], *, require_boxed: bool = False, precision: int = 6) -> float:
    """1.0 when the answer equals the reference (`precision` decimals for numbers), else 0.0. Raises ValueError when the reference cannot be parsed.

    `require_boxed` pays only answers in a box.
    """
    if label is None:
        raise ValueError("the prompt has no reference answer")
    reference = parse_reference(str(label))
    answer = boxed(text)
    if answer is None and require_boxed:
        return 0.0
    parsed = parse_text(text) if answer is None else parse_expression(answer)
    return float(bool(parsed) and verify(reference, parsed, float_rounding=precision, timeout_seconds=None, raise_on_error=True))


def parse_reference(label: str) -> list[Any]:
    """The expressions a reference stands for: a bare one, one in `$…$` or a box, or what follows `####` (the convention of GSM8K)."""
    text = label.rpartition("####")[2].strip()
    answer = boxed(text)
    parsed = parse_expression(text if answer is None else answer)
    if not parsed:
        raise ValueError(f"the reference answer {label[:80]!r} cannot be parsed as mathematics")
    return parsed


def parse_expression(text: str) -> list[Any]:
    """What math-verify reads `text` as when it is taken for one expression (it forgives words around a number); empty when it finds none."""
    text = text.strip()
    if not text:
        return []
    latex = text if "$" in text else f"${text}$"
    return _parse(latex, [LatexExtractionConfig()]) or _parse(text, [ExprExtractionConfig()])


def parse_text(text: str) -> list[Any]:
    """The last expression in running text; empty when there is none."""
    return _parse(text, [LatexExtractionConfig(), ExprExtractionConfig()])


def _parse(text: str, kinds: list[Any]) -> list[Any]:
    # Without a fallback: it would return the raw string, which then compares equal to another string that parses no better.
    return parse(text, kinds, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)


def boxed(text: str) -> str | None:
    """The content of the last box: None when the text has no box, empty when the last one never closes."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    rest = text[start + len(BOX) :].lstrip()
    if not rest.startswith("{"):
        return next(iter(rest.split("$")[0].split()), "")  # \boxed 42, as some models write it
    depth = 0
    for i, char in enumerate(rest):
        escaped = i > 0 and rest[i - 1] == "\\"
        depth += 0 if escaped else (char == "{") - (char == "}")
        if depth == 0:
            return rest[1:i]
    return ""
