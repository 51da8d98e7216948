"""Helpers: twins, configurations, and trainer ranks in processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import random
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vime.config.tree import AlgoConfig, Config, DataConfig, ModelConfig, ParallelConfig, RolloutConfig, TrainConfig
from vime.models.twins import make_twin

TWIN = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,  # logits far enough from uniform that a wrong weight shows
}


def twin(directory: Path, **changes: Any) -> str:
    """A model directory without weights."""
    return str(make_twin({**TWIN, **changes}, directory))


def configured(
    path: str, *, parallel: dict[str, Any] | None = None, algo: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **changes: Any
) -> Config:
    """A run's configuration in float32 with random weights of seed 1."""
    model = changes.pop("model", {})
    base = Config(
        model=ModelConfig(**{"path": path, "dtype": "float32", "random_init_seed": 1, **model}),
        data=DataConfig(task="spell_backward"),
        platform="cpu",
        rollout=RolloutConfig(temperature=changes.pop("temperature", 1.0)),
        algo=AlgoConfig(**(algo or {})),
        train=TrainConfig(**{"lr": 1e-3, "steps": 10, **(train or {})}),
        parallel=ParallelConfig(**(parallel or {})),
    )
    return dataclasses.replace(base, **changes)


def random_batch(samples: int = 12, seed: int = 0, longest: int = 20, **changes: Any) -> Any:
    """Samples of many lengths with random ids, masks, advantages and engine log-probs near those of a random model."""
    from vime.training.batch import TrainBatch

    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, longest, size=samples)
    masks = [[0] * cut + [1] * (length - cut) for length, cut in ((n, int(rng.integers(1, n))) for n in lengths)]
    total = int(lengths.sum())
    flat = np.concatenate(masks)
    given = {
        "advantages": (rng.normal(size=total) * flat).astype(np.float32),
        "engine_logprobs": (rng.normal(-4, 0.3, size=total) * flat).astype(np.float32),
        "group_ids": np.arange(samples) // 4,
        "names": tuple(f"0-{index // 4}-{index % 4}" for index in range(samples)),
    }
    return TrainBatch.of([rng.integers(3, 48, size=n).tolist() for n in lengths], masks, **{**given, **changes})


def free_port() -> int:
    """A port that nobody listens on, below those the kernel gives to outgoing connections: it may be used minutes later."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def one_rank(config: Config) -> Iterator[Any]:
    """A started TrainerActor of a world of one, in this process."""
    from vime.training.actor import TrainerActor

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    actor = TrainerActor()
    try:
        actor.start(config, 0, 1, "127.0.0.1", free_port())
        yield actor
    finally:
        actor.stop()


def on_ranks(world: int, function: Callable[..., Any], *args: Any, directory: Path, seconds: float = 120) -> list[Any]:
    """`function(rank, world, port, *args)` in `world` processes; their results by rank. A rank's error is raised here with its traceback.

    They are forked from a server that has imported torch and Megatron-Core and done nothing else: imports take longer than most layouts' work.
    """
    directory.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.imports"])
    port = free_port()
    processes = [context.Process(target=_entry, args=(function, rank, world, port, args, directory)) for rank in range(world)]
    for process in processes:
        process.start()
    until = time.monotonic() + seconds
    while any(process.is_alive() for process in processes) and not (directory / "failed").exists() and time.monotonic() < until:
        time.sleep(0.05)
    for process in processes:
        process.join(1.0 if (directory / "failed").exists() else max(0.0, until - time.monotonic()))
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
        process.join()
    outcomes = [pickle.loads((directory / str(rank)).read_bytes()) if (directory / str(rank)).exists() else ("error", "died or hung") for rank in range(world)]
    errors = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(outcomes) if kind == "error"]
    assert not errors and not alive, "\n".join(errors)
    return [value for _, value in outcomes]


def _entry(function: Callable[..., Any], rank: int, world: int, port: int, args: tuple[Any, ...], directory: Path) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TORCHDYNAMO_DISABLE="1", OMP_NUM_THREADS="1")
    import torch

    torch.set_num_threads(1)
    try:
        outcome = ("ok", function(rank, world, port, *args))
    except BaseException:  # noqa: BLE001  (told to the parent, which raises it)
        outcome = ("error", traceback.format_exc())
        (directory / "failed").touch()  # the others would wait for this rank in a collective
    (directory / str(rank)).write_bytes(pickle.dumps(outcome))
