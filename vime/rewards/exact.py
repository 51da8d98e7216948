"""1 for exactly the reference answer, ended; 0 for anything else."""

from __future__ import annotations

from typing import Any


def exact_match(
    text: str, label: Any, metadata: dict[str, Any], *, finish_reason: str, response_ids: list[int], strip: bool = False, ignore_case: bool = False
) -> float:
    """1.0 when the answer equals `label` and was ended by the model; an answer cut at the token limit is not exact, whatever it holds.

    `label` is compared as text, or, when it is a list of ids, with the ids before the end mark. `strip` and `ignore_case` apply to both texts.
    Raises ValueError when there is no label to compare with.
    """
    if label is None:
        raise ValueError("the prompt has no reference answer; use the reward that knows its task (reasoning_gym)")
    if finish_reason != "stop":
        return 0.0
    if isinstance(label, list):
        return float(list(response_ids[:-1]) == label)
    expected = str(label)
    if strip:
        text, expected = text.strip(), expected.strip()
    if ignore_case:
        text, expected = text.casefold(), expected.casefold()
    return float(text == expected)
