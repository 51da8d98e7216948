"""Samples for the reward tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from vime.data import Prompt, Sample


def sample(text: str, label: Any = "", *, number: int = 0, finish_reason: Any = "stop", ids: list[int] | None = None, metadata: Any = None) -> Sample:
    ids = [5, 2] if ids is None else ids
    prompt = Prompt(number, f"p{number}", [1, 5], label, metadata or {})
    n = len(ids)
    return Sample(f"0-{number}-0", number, 0, prompt, ids, np.full(n, -0.5, np.float32), np.ones(n, np.uint8), finish_reason, weight_version=0, text=text)


def batch(*texts: str) -> list[Sample]:
    return [sample(text, number=i) for i, text in enumerate(texts)]
