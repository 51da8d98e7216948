"""JSON whose text can be printed and stored again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from reports.model import printable


def json_value(text: str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """As json.loads, with every half of a character (an escape such as \\ud800 by itself) written out: such text could not be stored. Raises ValueError."""
    value = json.loads(text, object_pairs_hook=hook)
    return printed(value) if "\\ud" in text or "\\uD" in text else value


def printed(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): printed(item) for name, item in value.items()}
    return [printed(item) for item in value] if isinstance(value, list) else value
