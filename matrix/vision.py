"""Parameters of a Qwen3-VL style vision tower, from its `vision_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def vision_parameters(vision: Mapping[str, Any]) -> int:
    """Patch embedding, position embedding, transformer blocks, merger and deepstack mergers, biases included."""
    hidden, ffn, merge = vision["hidden_size"], vision["intermediate_size"], vision["spatial_merge_size"]
    patch = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    embedding = patch * hidden + hidden + vision["num_position_embeddings"] * hidden
    attention = hidden * 3 * hidden + 3 * hidden + hidden * hidden + hidden
    block = attention + 2 * hidden * ffn + ffn + hidden + 4 * hidden  # two linear layers with biases, two layer norms
    merged, out = hidden * merge**2, vision["out_hidden_size"]
    linear = merged * merged + merged + merged * out + out
    merger = linear + 2 * hidden
    deepstack = len(vision.get("deepstack_visual_indexes") or ()) * (linear + 2 * merged)
    return embedding + vision["depth"] * block + merger + deepstack
