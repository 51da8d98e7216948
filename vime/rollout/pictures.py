"""Prompts with images on their way into an engine: one token an image, and the pictures, opened once however many requests ask about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vime.data.images import Image, collapsed
from vime.errors import RunError


def engine_prompt(ids: Sequence[int], images: Sequence[Image], token_id: int | None, opened: dict[str, Any]) -> dict[str, Any]:
    """vLLM's prompt for expanded `ids`; it expands them again itself. `opened`: pictures by digest, shared by the requests of one call."""
    if not images:
        return {"prompt_token_ids": list(ids)}
    if token_id is None:
        raise RunError("rollout", "a prompt has images, but the engine's model has no vision tower")
    for image in images:
        if image.digest not in opened:
            opened[image.digest] = image.picture()
    return {
        "prompt_token_ids": collapsed(ids, images, token_id),
        "multi_modal_data": {"image": [opened[image.digest] for image in images]},
        "multi_modal_uuids": {"image": [image.digest for image in images]},
    }


def check_expanded(name: str, ids: Sequence[int], found: Sequence[int] | None) -> None:
    """The engine made of a prompt with images what the trainer will be given. Raises RunError naming the first difference."""
    if found is None or list(found) != list(ids):
        found = found or ()
        where = next((index for index, (ours, theirs) in enumerate(zip(ids, found, strict=False)) if ours != theirs), min(len(ids), len(found)))
        raise RunError(
            "rollout",
            f"{name}: the engine made {len(found)} ids of a prompt with images, the trainer {len(ids)}; they differ from position {where} on: "
            "engine and trainer use different image processors",
        )
