"""The reward of vs_trl.py where every answer has the same forced length."""

from __future__ import annotations

from typing import Any


def share_of_label(text: str, label: str, metadata: dict[str, Any]) -> float:
    """The fraction of the text's characters that the label holds (`trl_side.share` is the same)."""
    return sum(character in label for character in text) / max(len(text), 1)
