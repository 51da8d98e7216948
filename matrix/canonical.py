"""One spelling of a value, and its hash: the same whatever the order of keys and whether a whole number was written 1 or 1.0."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

SHORT = 12  # characters of a hash in directory names


def canonical_json(value: Any) -> str:
    """Sorted keys, no spaces, whole floats as integers. Raises ValueError for NaN and infinities, TypeError for what JSON cannot hold."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_hash(value: Any) -> str:
    """SHA-256 of the canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError(f"keys must be text: {list(value)}")
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
