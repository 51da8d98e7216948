"""The text models that parallel layouts are tested on: the twins of every family (`tests/models/families.py`), with an odd vocabulary and larger weights."""

from __future__ import annotations

from typing import Any

from tests.models.families import BY_NAME, CASES

# 67 ids: tensor ranks pad them. Logits far enough from uniform that a wrong weight shows.
CHANGES = {"vocab_size": 67, "initializer_range": 0.1}

MODELS: dict[str, dict[str, Any]] = {case.name: {**case.config, **CHANGES} for case in CASES if not case.sees}
DEEP: dict[str, dict[str, Any]] = {f"{name}-{layers}": {**BY_NAME[name].deeper(layers), **CHANGES} for name, layers in (("qwen3-untied", 3), ("llama", 4))}
SPARSE = tuple(name for name in MODELS if BY_NAME[name].experts)
DRAFTING = tuple(name for name in MODELS if BY_NAME[name].mtp)
