"""A real vLLM engine in a process of its own, as a handle: vLLM changes its process (thread settings, process groups) too much to live in pytest's."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from vime.config.tree import Config, DataConfig, ModelConfig, RolloutConfig, WeightsConfig
from vime.platforms.cpu import CpuPlatform
from vime.weights.handles import LocalPending

STATE: dict[str, Any] = {}


def config_of(model: Path, dtype: str = "float32", *, rollout: dict[str, Any] | None = None, vllm: dict[str, Any] | None = None, **weights: Any) -> Config:
    sizes = {"max_prompt_tokens": 16, "max_response_tokens": 16, "prompts_per_step": 4, "samples_per_prompt": 4}
    return Config(
        model=ModelConfig(path=str(model), dtype=dtype),
        data=DataConfig(task="spell_backward"),
        platform="cpu",
        rollout=RolloutConfig(**{**sizes, **(rollout or {})}),
        weights=WeightsConfig(**{"transport": "ipc", "verify_held_every": 1, "timeout_s": 20.0, **weights}),
        vllm=vllm or {},
    )


class EngineChild:
    """Implements `vime.weights.handles.Handle` for an `EngineActor` in a child process."""

    def __init__(self, config: Config, name: str = "engine 0", index: int = 0, **start: Any):
        self.name, self.config = name, config
        environment = CpuPlatform().environment("engine", config)
        self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_set_environment, initargs=(environment,))
        self.started = self.run(_start, config, index, config.model.path, start)

    def call(self, method: str, *args: Any, **kwargs: Any) -> LocalPending:
        return LocalPending(self.pool.submit(_call, method, args, kwargs), self.name, method)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(engine, *args)` in the child; it must be importable."""
        return self.pool.submit(_run, function.__module__, function.__qualname__, args).result(120)

    def close(self) -> None:
        self.pool.shutdown()


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.update(variables)


def _start(_: None, config: Config, index: int, path: str, start: dict[str, Any]) -> dict[str, Any]:
    from vime.rollout.engine import EngineActor

    STATE["engine"] = EngineActor()
    return STATE["engine"].start(config, index, path, **start)


def _call(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return getattr(STATE["engine"], method)(*args, **kwargs)


def _run(module: str, name: str, args: tuple[Any, ...]) -> Any:
    return getattr(importlib.import_module(module), name)(STATE.get("engine"), *args)
