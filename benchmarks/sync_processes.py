"""The two processes of weight_sync.py, a source and an engine, and their handles: what the weight session takes for its workers."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any


class Stopwatch:
    """Seconds spent in functions of this process, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

        return timed

    def take(self) -> dict[str, float]:
        out, self.seconds = self.seconds, {}
        return out


class Source:
    """The trainer's process: made-up weights, and a sender for each transport."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]):
        import torch

        from vime.platforms import registry
        from vime.weights import encodings

        self.watch = Stopwatch()
        self.platform: Any = registry.get("cpu")
        self.platform.tensor_digest = self.watch.wrap("digest", self.platform.tensor_digest)
        encodings.write = self.watch.wrap("write", encodings.write)
        generator = torch.Generator().manual_seed(0)
        self.weights = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in shapes.items()}
        self.copies: dict[str, Any] = {}
        self.senders: dict[str, Any] = {}

    def shards(self) -> list[Any]:
        from vime.weights.exporter import Shard

        return [Shard(name, tuple(t.shape), tuple(slice(0, n) for n in t.shape), 0, t) for name, t in self.weights.items()]

    def sender(self, key: str) -> Any:
        from vime.weights.sender import WeightSender

        if key not in self.senders:
            self.senders[key] = WeightSender(self.platform, 0, self.shards)
        return self.senders[key]

    def weights_manifest(self, key: str) -> Any:
        return self.sender(key).manifest()

    def weights_open(self, key: str, connection: Any) -> Any:
        endpoint = self.sender(key).open(connection)
        channel = self.sender(key).channel
        channel.buffer, channel.put = self.watch.wrap("buffer", channel.buffer), self.watch.wrap("put", channel.put)
        return endpoint

    def weights_connect(self, key: str, connection: Any) -> None:
        self.sender(key).connect(connection)

    def weights_send(self, key: str, version: int, base: int | None = None) -> Any:
        return self.sender(key).send(version, base)

    def weights_close(self, key: str) -> None:
        self.sender(key).close()

    def copy(self, key: str, dtype: str) -> float:
        """Seconds of a plain copy of every tensor into memory that is already there."""
        import torch

        if not self.copies:
            self.copies = {name: torch.zeros(t.shape, dtype=getattr(torch, dtype)) for name, t in self.weights.items()}
        begin = time.perf_counter()
        for name, tensor in self.weights.items():
            self.copies[name].copy_(tensor)
        return time.perf_counter() - begin

    def take(self, key: str) -> dict[str, float]:
        return self.watch.take()


class MemoryEngine:
    """The engine's process without vLLM: a receiver for each transport, and memory of its own that every tensor is copied into."""

    def __init__(self) -> None:
        from vime.platforms import registry

        self.watch = Stopwatch()
        platform: Any = registry.get("cpu")
        platform.tensor_digest = self.watch.wrap("digest", platform.tensor_digest)
        self.receivers: dict[str, Any] = {}
        self.held: dict[str, Any] = {}

    def layout(self, key: str) -> list[None]:
        return [None]

    def connect(self, key: str, connection: Any) -> None:
        from vime.weights.receiver import WeightReceiver

        self.receivers[key] = WeightReceiver()
        self.receivers[key].connect(connection, 0, 0)
        channel = self.receivers[key].channel
        channel.get = self.watch.wrap("get", channel.get)

    def receive(self, key: str, version: int, base: int | None = None) -> list[Any]:
        return [self.receivers[key].receive(version, base, self)]

    def load(self, tensors: Sequence[tuple[str, Any]]) -> None:
        begin = time.perf_counter()
        for name, tensor in tensors:
            if name not in self.held:
                self.held[name] = tensor.clone()
            self.held[name].copy_(tensor)
        self.watch.seconds["load"] = self.watch.seconds.get("load", 0.0) + time.perf_counter() - begin

    def settle(self, buffer: Any) -> None:
        return None

    def commit(self, key: str, version: int) -> None:
        self.receivers[key].commit()

    def begin(self, key: str, version: int) -> None:
        return None

    def resume(self, key: str) -> None:
        return None

    def abort(self, key: str, version: int) -> None:
        if key in self.receivers:
            self.receivers[key].abort()

    def disconnect(self, key: str) -> None:
        if key in self.receivers:
            self.receivers[key].close()

    def take(self, key: str) -> dict[str, float]:
        return self.watch.take()


class VllmEngine:
    """The engine's process with vLLM: `vime.rollout.engine.EngineActor`, one sync session at a time."""

    def __init__(self, values: dict[str, Any]):
        from vime.config.resolve import from_dict
        from vime.rollout.engine import EngineActor

        self.actor = EngineActor()
        config = from_dict(values).config
        self.actor.start(config, 0, config.model.path)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.actor, name)
        return lambda key, *args: method(*args)

    def take(self, key: str) -> dict[str, float]:
        return {}


def serve(pipe: Any, kind: str, argument: Any, environment: dict[str, str]) -> None:
    """A process that holds one of the classes above and answers calls: (key, method, arguments) in, (result, error) out."""
    os.environ.update(environment | {"VLLM_LOGGING_LEVEL": "ERROR"})  # vLLM writes its warnings to stdout, where the tables belong
    target = {"source": Source, "memory": MemoryEngine, "vllm": VllmEngine}[kind](*([] if argument is None else [argument]))
    pipe.send("ready")
    while (call := pipe.recv()) is not None:
        key, method, args = call
        try:
            pipe.send((getattr(target, method)(key, *args), None))
        except Exception as error:  # noqa: BLE001  (it is raised again in the parent)
            pipe.send((None, error))
    os._exit(0)


class PipeWorker:
    """A handle as the session wants it, on an object of another process."""

    def __init__(self, pipe: Any, process: Any, key: str, name: str):
        self.pipe, self.process, self.key, self.name = pipe, process, key, name

    def call(self, method: str, *args: Any, **kwargs: Any) -> PipeWorker:
        self.pipe.send((self.key, method, args))
        return self

    def result(self, timeout_s: float, stage: str) -> Any:
        if not self.pipe.poll(timeout_s):
            raise SystemExit(f"{self.name} did not answer within {timeout_s:g} s ({stage})")
        value, error = self.pipe.recv()
        if error is not None:
            raise error
        return value

    def ask(self, method: str, *args: Any) -> Any:
        return self.call(method, *args).result(300, method)


def gather(pending: Sequence[PipeWorker], timeout_s: float, stage: str) -> list[Any]:
    return [item.result(timeout_s, stage) for item in pending]


class Pair:
    """A source and an engine, each in a process of its own."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], engine: str, argument: Any, environment: dict[str, str]):
        self.ends = [self._start("source", shapes, environment), self._start(engine, argument, environment)]
        for pipe, process in self.ends:
            if not pipe.poll(300) or pipe.recv() != "ready":
                raise SystemExit(f"a process of the benchmark did not start (exit code {process.exitcode})")

    @staticmethod
    def _start(kind: str, argument: Any, environment: dict[str, str]) -> tuple[Any, Any]:
        context = multiprocessing.get_context("spawn")
        pipe, end = context.Pipe()
        process = context.Process(target=serve, args=(end, kind, argument, environment), daemon=True)
        process.start()
        end.close()
        return pipe, process

    def workers(self, key: str) -> tuple[PipeWorker, PipeWorker]:
        (source, one), (engine, two) = self.ends
        return PipeWorker(source, one, key, "source"), PipeWorker(engine, two, key, "engine")

    def close(self) -> None:
        for pipe, process in self.ends:
            if process.is_alive():
                pipe.send(None)
            process.join(10)
            process.kill()
