"""The scorer of the reasoning-gym dataset that made the prompt."""

from __future__ import annotations

import functools
import json
from typing import Any

from reasoning_gym.utils import extract_answer

from vime.data.tasks import GYM_KEY, gym_dataset


def reasoning_gym(text: str, label: Any, metadata: dict[str, Any], *, tag: str | None = None) -> float:
    """The dataset's own score of the answer (many give partial credit), usually in [0, 1].

    `tag` takes the answer from the last `<tag>…</tag>` of the text; without one there, the scorer is given no answer. Raises KeyError when the prompt
    was not made by a reasoning-gym task.
    """
    if GYM_KEY not in metadata:
        raise KeyError(f"the prompt has no metadata {GYM_KEY!r}: the reward reasoning_gym scores prompts of reasoning-gym tasks only")
    origin = metadata[GYM_KEY]
    answer = text.strip() if tag is None else extract_answer(text, tag)
    return _dataset(origin["dataset"], json.dumps(origin["args"], sort_keys=True)).score_answer(answer, origin["entry"])


@functools.lru_cache(maxsize=64)
def _dataset(name: str, args: str) -> Any:
    return gym_dataset(name, {**json.loads(args), "seed": 0, "size": 1})
