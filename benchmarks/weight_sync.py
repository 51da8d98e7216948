"""Seconds and GB/s of a weight sync between two processes: shared memory (`ipc`) and gloo (`broadcast`), against a plain memory copy of the same bytes.

    python benchmarks/weight_sync.py                  10 MB, 100 MB, 1 GB; then a real vLLM engine at 10 MB
    python benchmarks/weight_sync.py --bucket-mb 64   other buckets than the default 256
    python benchmarks/weight_sync.py --quick

The parts are vime's own: the session (begin, send and receive, compare digests, commit, resume), sender, receiver, transports. Sender and receiver are two
processes. The receiver copies every tensor into memory of its own, as an engine has to; in the last table it is a vLLM engine. Every round does the copy and
each transport once, so drift meets all. The plain copy is torch's `copy_` of the same tensors in one process with the same number of threads.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import arguments, finish, machine, machine_line, median, ratio, say, table

TRANSPORTS = ("ipc", "broadcast")
MB = 10**6
SIZES = {10: 20, 100: 10, 1000: 5}  # megabytes → rounds
TENSOR_MB = 16.8  # 4096 × 1024 float32, a projection of a model of one to two billion parameters
ENGINE_TWIN = {"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 576, "num_attention_heads": 4, "num_key_value_heads": 2}
ENGINE_TWIN |= {"head_dim": 64, "tie_word_embeddings": True, "max_position_embeddings": 64, "architectures": ["Qwen3ForCausalLM"], "dtype": "float32"}


# ---- the two processes ------------------------------------------------------------------------------------------------------------------------------------


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


# ---- the parent -------------------------------------------------------------------------------------------------------------------------------------------


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


def run_config(model: Path, transport: str, dtype: str, bucket_mb: float) -> Any:
    from vime.config.resolve import from_dict

    return from_dict(
        {
            "model": {"path": str(model), "dtype": "float32"},
            "data": {"task": "spell_backward"},
            "platform": "cpu",
            "placement": {"mode": "colocate" if transport == "ipc" else "non-colocate"},
            "rollout": {"dtype": dtype, "max_prompt_tokens": 8, "max_response_tokens": 8},
            "weights": {"transport": transport, "bucket_mb": bucket_mb, "verify_held_every": 0},
        }
    )


def session(pair: Pair, transport: str, dtype: str, bucket_mb: float, model: Path) -> Any:
    from vime.platforms import registry
    from vime.weights.session import WeightSync

    source, engine = pair.workers(transport)
    return WeightSync([source], [engine], run_config(model, transport, dtype, bucket_mb).config, registry.get("cpu"), gather=gather)


def shapes_of(megabytes: float) -> dict[str, tuple[int, ...]]:
    """Made-up float32 tensors of `megabytes` in all, of up to 16.8 MB each, in layers."""
    total, result = int(megabytes * MB / 4), {}
    rows = min(4096, max(64, total // 1024 // 8))
    while total > 0:
        rows = min(rows, max(1, total // 1024))
        result[f"model.layers.{len(result) // 7}.part{len(result) % 7}.weight"] = (rows, 1024)
        total -= rows * 1024
    return result


def measure_size(megabytes: int, rounds: int, dtype: str, bucket_mb: float, environment: dict[str, str]) -> dict[str, Any]:
    """Rounds of copy, ipc and broadcast over one pair of processes; the first round is not counted."""
    pair = Pair(shapes_of(megabytes), "memory", None, environment)
    try:
        syncs = {transport: session(pair, transport, dtype, bucket_mb, Path("none")) for transport in TRANSPORTS}
        source, engine = pair.workers("copy")
        records: list[dict[str, Any]] = []
        for version in range(rounds + 1):
            records.append({"way": "copy", "round": version, "seconds": source.ask("copy", dtype)})
            for transport, sync in syncs.items():
                source.ask("take"), engine.ask("take")
                pushed = sync.push(version)
                parts = {"source": source.ask("take"), "engine": engine.ask("take")}
                records.append({"way": transport, "round": version, "seconds": pushed.seconds, "bytes": pushed.bytes, "stages": dict(pushed.stages), **parts})
        return {"megabytes": megabytes, "dtype": dtype, "bucket_mb": bucket_mb, "records": [r for r in records if r["round"]]}
    finally:
        pair.close()


def measure_engine(rounds: int, environment: dict[str, str]) -> dict[str, Any]:
    """A vLLM engine as the receiving end, about 10 MB of weights, over each transport."""
    from vime.models.hf_io import read_config
    from vime.models.registry import family_for
    from vime.models.twins import make_twin

    with tempfile.TemporaryDirectory(prefix="vime-bench-") as scratch:
        model = make_twin(ENGINE_TWIN, Path(scratch) / "twin")
        hf_config = read_config(str(model))
        shapes = dict(family_for(hf_config).weight_table(hf_config).shapes)
        records = []
        for transport in TRANSPORTS:
            pair = Pair(shapes, "vllm", run_config(model, transport, "float32", 256.0).as_dict(), environment)
            try:
                sync = session(pair, transport, "float32", 256.0, model)
                for version in range(rounds + 1):
                    pushed = sync.push(version)
                    records.append({"way": transport, "round": version, "seconds": pushed.seconds, "bytes": pushed.bytes, "stages": dict(pushed.stages)})
            finally:
                pair.close()
        return {"records": [r for r in records if r["round"]]}


# ---- tables -----------------------------------------------------------------------------------------------------------------------------------------------


def seconds_of(records: Sequence[dict[str, Any]], way: str) -> float:
    return median(r["seconds"] for r in records if r["way"] == way)


def rate(nbytes: float, seconds: float) -> str:
    return f"{nbytes / seconds / 1e9:.2f}"


def speed_table(cases: Sequence[dict[str, Any]]) -> str:
    rows = []
    for case in cases:
        records = case["records"]
        nbytes = next(r["bytes"] for r in records if r["way"] == "ipc")
        base = seconds_of(records, "copy")
        row = [f"{case['megabytes']} MB of float32" + ("" if case["dtype"] == "float32" else f" → {case['dtype']}"), f"{base:.4f}", rate(nbytes, base)]
        for way in TRANSPORTS:
            seconds = seconds_of(records, way)
            row += [f"{seconds:.4f}", rate(nbytes, seconds), ratio(seconds, base)]
        rows.append(row)
    head = ["weights", "copy s", "GB/s", "ipc s", "GB/s", "× copy", "broadcast s", "GB/s", "× copy"]
    return table(head, rows)


def where_table(cases: Sequence[dict[str, Any]]) -> str:
    """Milliseconds inside each process; sender and receiver work at the same time where there is more than one bucket."""
    rows = []
    for case in cases:
        for way in TRANSPORTS:
            found = [r for r in case["records"] if r["way"] == way]

            def part(side: str, name: str, found: list[dict[str, Any]] = found) -> float:
                return 1000 * median(r[side].get(name, 0.0) for r in found)

            packed = 1000 * median(r["source"]["write"] - r["source"]["digest"] for r in found)
            session_ms = 1000 * median(r["seconds"] - r["stages"]["transfer"] for r in found)
            cells = [packed, part("source", "digest"), part("source", "buffer"), part("source", "put")]
            cells += [part("engine", "get"), part("engine", "digest"), part("engine", "load"), session_ms]
            rows.append([f"{case['megabytes']} MB, {case['dtype']}, {way}", *(f"{value:.1f}" for value in cells)])
    head = ["median ms", "pack (cast, copy)", "digest", "wait for a buffer", "put", "wait and receive", "digest", "copy into the engine", "session"]
    return table(head, rows)


def engine_table(case: dict[str, Any]) -> str:
    rows = []
    for way in TRANSPORTS:
        found = [r for r in case["records"] if r["way"] == way]
        stages = {name: 1000 * median(r["stages"][name] for r in found) for name in ("begin", "transfer", "commit", "resume")}
        rows.append([f"{way}, {found[0]['bytes'] / MB:.1f} MB", f"{1000 * seconds_of(found, way):.1f}", *(f"{value:.1f}" for value in stages.values())])
    return table(["vLLM engine, median ms", "push", "begin", "transfer and load", "commit", "resume"], rows)


def main() -> None:
    parser = arguments(__doc__, "10 MB, three rounds, no vLLM engine")
    parser.add_argument("--bucket-mb", type=float, default=256.0, help="weights.bucket_mb (default %(default)s)")
    parser.add_argument("--no-engine", action="store_true", help="leave the vLLM engine out")
    options = parser.parse_args()
    about = machine()
    sizes = {10: 3} if options.quick else SIZES
    environment = platform_environment()
    cases = []
    for megabytes, rounds in sizes.items():
        for dtype in ("float32",) if megabytes != 100 else ("float32", "bfloat16"):
            say(f"{megabytes} MB to {dtype}, {rounds} rounds")
            cases.append(measure_size(megabytes, rounds, dtype, options.bucket_mb, environment))
    text = [machine_line(about), f"threads of each process: {environment['OMP_NUM_THREADS']}; buckets of {options.bucket_mb:g} MiB", "", speed_table(cases), ""]
    text += ["Where the time goes (the first four columns in the sender's process, the next three in the receiver's):", "", where_table(cases)]
    result: dict[str, Any] = {"machine": about, "bucket_mb": options.bucket_mb, "cases": cases}
    if not (options.quick or options.no_engine):
        say("a vLLM engine, 10 MB")
        result["engine"] = measure_engine(10, environment)
        text += ["", engine_table(result["engine"])]
    finish(result, "\n".join(text), options.json)


def platform_environment() -> dict[str, str]:
    from vime.platforms import registry

    return dict(registry.get("cpu").environment("engine", run_config(Path("none"), "ipc", "float32", 1.0).config))


if __name__ == "__main__":
    main()
