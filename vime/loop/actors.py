"""What runs in a Ray actor: a trainer rank or an engine, named by its import path so that the driver imports neither Megatron-Core nor vLLM."""

from __future__ import annotations

import importlib
from typing import Any

TRAINER = "vime.loop.trainer_actor:Trainer"
ENGINE = "vime.rollout.engine:EngineActor"
ENGINE_THREADS = 4  # a running generation must not keep a weight sync's `begin` or a health probe out


class Remote:
    """An object made in the actor's process; every call goes to it."""

    def __init__(self, target: str):
        module, _, name = target.partition(":")
        self.target = getattr(importlib.import_module(module), name)()

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.target, method)(*args, **kwargs)
