"""A digest of a prompt pool: the same in every process and Python version, different when anything a run consumes differs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xxhash

from vime.data.sample import Prompt


def fingerprint(prompts: Iterable[Prompt]) -> str:
    """32 hexadecimal digits over text, ids, label, metadata and images of every prompt, in order."""
    digest = xxhash.xxh3_128()
    for prompt in prompts:
        record = [prompt.text, prompt.ids, canonical(prompt.label), canonical(prompt.metadata), *(image.digest for image in prompt.images)]
        digest.update(json.dumps(record, ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()


def canonical(value: Any) -> Any:
    """`value` as JSON types, in an order that does not depend on hash seeds or insertion; an object of another kind counts by its type alone."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {"map": sorted(([json.dumps(canonical(k)), canonical(v)] for k, v in value.items()), key=lambda pair: pair[0])}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(json.dumps(canonical(v)) for v in value)}
    if isinstance(value, (list, tuple)):
        return [canonical(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return canonical(value.tolist())
    # An object's repr may hold its address, which differs from process to process.
    return {"object": f"{type(value).__module__}.{type(value).__qualname__}"}
