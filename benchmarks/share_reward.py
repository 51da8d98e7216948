"""The reward of vs_trl.py where every answer has the same forced length."""

from __future__ import annotations

from typing import Any


def share_of_label(text: str, label: str, metadata: dict[str, Any], response_ids: list[int]) -> float:
    """The fraction of characters that the label holds (`trl_side.pay` computes the same on ids)."""
    return sum(character in label for character in text) / len(response_ids)
