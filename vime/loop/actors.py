"""What runs in a Ray actor: a trainer rank or an engine, named by its import path so that the driver imports neither Megatron-Core nor vLLM."""

from __future__ import annotations

import importlib
from typing import Any

TRAINER = "vime.loop.trainer_actor:Trainer"
ENGINE = "vime.rollout.engine:EngineActor"
OWN = frozenset({"node_endpoint"})  # calls that the actor answers itself
ENGINE_THREADS = 4  # a running generation must not keep a weight sync's `begin` or a health probe out


class Remote:
    """An object made in the actor's process; every call goes to it."""

    def __init__(self, target: str):
        module, _, name = target.partition(":")
        self.target = getattr(importlib.import_module(module), name)()

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self if method in OWN else self.target, method)(*args, **kwargs)

    def node_endpoint(self) -> tuple[str, int]:
        """This node's address in the cluster, and a TCP port that is free on it now."""
        import socket

        import ray

        with socket.socket() as probe:
            address = ray.util.get_node_ip_address()
            probe.bind((address, 0))
            return address, probe.getsockname()[1]
