"""Seconds and GB/s of a weight sync between two processes: shared memory (`ipc`) and gloo (`broadcast`), against a plain memory copy of the same bytes.

    python benchmarks/weight_sync.py                  10 MB, 100 MB, 1 GB; then a real vLLM engine at 10 MB
    python benchmarks/weight_sync.py --bucket-mb 64   other buckets than the default 256
    python benchmarks/weight_sync.py --quick

The parts are vime's own: the session (begin, send and receive, compare digests, commit, resume), sender, receiver, transports. Sender and receiver are two
processes. The receiver copies every tensor into memory of its own, as an engine has to; in the last table it is a vLLM engine. Every round does the copy and
each transport once, so drift meets all. The plain copy is torch's `copy_` of the same tensors in one process with the same number of threads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import arguments, finish, machine, machine_line, median, ratio, say, table
from sync_processes import Pair, gather

TRANSPORTS = ("ipc", "broadcast")
MB = 10**6
SIZES = {10: 20, 100: 10, 1000: 5}  # megabytes → rounds
ENGINE_TWIN = {"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 576, "num_attention_heads": 4, "num_key_value_heads": 2}
ENGINE_TWIN |= {"head_dim": 64, "tie_word_embeddings": True, "max_position_embeddings": 64, "architectures": ["Qwen3ForCausalLM"], "dtype": "float32"}


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
    """Made-up float32 tensors of `megabytes` in all, of up to 16.8 MB each (4096 × 1024), in layers."""
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
