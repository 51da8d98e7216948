"""Engines start with random weights, which the first sync replaces. vLLM fills in random numbers wherever it finds a tensor, also in buffers that no checkpoint
holds and no sync can mend: the mean and deviation by which pictures are normalised are such. They keep what they were built with.

`tests/rollout/test_dummy.py` fails when the installed vLLM leaves buffers alone by itself.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch


def keep_buffers() -> None:
    """Idempotent; in every worker process, before a model is loaded."""
    loader: Any = importlib.import_module("vllm.model_executor.model_loader.dummy_loader").DummyModelLoader
    original = loader.load_weights
    if getattr(original, "keeps_buffers", False):
        return

    def load_weights(self: Any, model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        kept = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
        original(self, model, *args, **kwargs)
        for buffer, value in kept:
            buffer.copy_(value)

    load_weights.keeps_buffers = True  # type: ignore[attr-defined]
    loader.load_weights = load_weights
