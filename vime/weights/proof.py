"""The two proofs of a sync. `received`: the bytes that arrived are those sent, always. `held`: what the engine computes with is what was sent."""

from __future__ import annotations

import functools
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vime.config.tree import Config
from vime.data.images import Image, ImageProcessor, load_image_processor
from vime.data.sample import Prompt
from vime.errors import RunError
from vime.training.images import ImageBatch, image_batch
from vime.weights.connection import Connection
from vime.weights.handles import Handle
from vime.weights.plan import STAGE
from vime.weights.receiver import Received

Wait = Callable[[Sequence[Any]], list[Any]]
PROBES, PROBE_LENGTH = 4, 24
# (mean, largest) |Δ log p| between trainer and engine, nats. Measured on random twins: fp32 4e-7 and 2e-6, bf16 dense 9e-3 and 0.05, bf16 MoE 1.3e-2 and 0.35
# (a router that flips an expert). Stale or garbled weights give 0.5 on average.
BANDS = {"float32": (1e-4, 1e-3), "bfloat16": (0.06, 1.0), "float16": (0.02, 0.5)}
# … of models with routed experts, in bfloat16: where a router wavers, rounding picks another expert. The random twin of Qwen3.5 MoE differs by 0.081 and 1.7
# between bfloat16 and float32 in the trainer alone, by 0.070 and 0.69 from the engine.
ROUTED = {"bfloat16": (0.15, 3.0)}
EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True)
class HeldCheck:
    """How what the engines hold was proven: `read_back` of `tensors` tensors by their digest, and by the log-prob probe unless that was all of them."""

    tensors: int
    read_back: int
    mean_gap: float | None  # mean |Δ log p| over the probe's ids, nats; None: every tensor could be read back
    largest_gap: float | None
    seconds: float

    @property
    def method(self) -> str:
        return "digest" if self.mean_gap is None else "probe" if not self.read_back else "digest+probe"

    def event(self) -> dict[str, Any]:
        return {"method": self.method, "tensors": self.tensors, "read_back": self.read_back, "mean_gap": self.mean_gap, "largest_gap": self.largest_gap}


def compare_received(connection: Connection, engine: int, rank: int, version: int, sent: Mapping[str, str], report: Received) -> None:
    """Raises `RunError` naming the tensor when a worker did not get exactly what was sent to it."""
    who = f"engine {engine} worker {rank}"
    if report.version != version:
        raise RunError(STAGE, f"{who} received version {report.version}, not {version}")
    expected = {unit.key for bucket in connection.incoming(connection.receivers.index((engine, rank))) for message in bucket.messages for unit in message.units}
    for key in sorted(expected):
        if report.digests.get(key) != sent.get(key) or key not in sent:
            arrived, left = report.digests.get(key, "none"), sent.get(key, "nothing")
            raise RunError(STAGE, f"{key}: {who} holds digest {arrived}, the trainer sent {left} (version {version})")


def prove_held(
    trainers: Sequence[Handle], engines: Sequence[Handle], config: Config, dtype: str, sent: Mapping[str, str], wait: Callable[[Sequence[Any]], list[Any]]
) -> HeldCheck:
    """Prove what every engine holds. Raises `RunError` naming the tensor whose digest differs, or the engine whose log-probs leave the dtype's band."""
    start = time.perf_counter()
    workers: list[list[dict[str, str]]] = wait([engine.call("held") for engine in engines])
    for index, reports in enumerate(workers):
        for held in reports:
            compare_held(index, sent, held)
    read_back = min(len(held) for reports in workers for held in reports)
    mean, largest = (None, None) if read_back == len(sent) else probe(trainers, engines, config, dtype, wait)
    return HeldCheck(len(sent), read_back, mean, largest, time.perf_counter() - start)


def compare_held(engine: int, sent: Mapping[str, str], held: Mapping[str, str]) -> None:
    for key, digest in held.items():
        if digest != sent[key]:
            raise RunError(STAGE, f"{key}: engine {engine} holds digest {digest} after the sync, the trainer sent {sent[key]}")


def probe(trainers: Sequence[Handle], engines: Sequence[Handle], config: Config, dtype: str, wait: Wait) -> tuple[float, float]:
    """Teacher-forced log-probs of fixed sequences, and pictures if the model sees, by trainer and engines: (mean, largest) gap over all engines. Raises
    `RunError` outside the dtype's band."""
    sequences, images, batch = [*probe_sequences(config)], None, None
    processor = image_processor(config.model.path)
    if processor is not None:
        sequences, images, batch = with_picture(sequences, processor)
    to_trainers, to_engines = ((sequences,), (sequences,)) if processor is None else ((sequences, batch), (sequences, images))
    results = wait([worker.call("logprobs", *to_trainers) for worker in trainers] + [engine.call("logprobs", *to_engines) for engine in engines])
    reference = next((result for result in results[: len(trainers)] if result), None)
    if reference is None:
        raise RunError(STAGE, "the trainers returned no log-probs for the weight probe")
    gaps = [check_gap(index, dtype, reference, held, band(config, dtype)) for index, held in enumerate(results[len(trainers) :])]
    return max(mean for mean, _ in gaps), max(largest for _, largest in gaps)


def band(config: Config, dtype: str) -> tuple[float, float]:
    """(mean, largest) |Δ log p| allowed to the model of a run."""
    values = model_values(config)
    return ROUTED.get(dtype, BANDS[dtype]) if any(values.get(key) for key in EXPERT_KEYS) else BANDS[dtype]


def check_gap(
    engine: int, dtype: str, reference: Sequence[np.ndarray], held: Sequence[np.ndarray], allowed: tuple[float, float] | None = None
) -> tuple[float, float]:
    """(mean, largest) |Δ log p|. "Good if inside the band", so NaN is never good."""
    gap = np.abs(np.concatenate(list(held)).astype(np.float64) - np.concatenate(list(reference)).astype(np.float64))
    mean, largest = float(gap.mean()), float(gap.max())
    allowed_mean, allowed_largest = allowed or BANDS[dtype]
    if mean <= allowed_mean and largest <= allowed_largest:
        return mean, largest
    raise RunError(
        STAGE,
        f"engine {engine} does not compute with the weights it received: its log-probs on the probe differ from the trainer's by {mean:.3g} on average "
        f"and {largest:.3g} at most (allowed for {dtype}: {allowed_mean:g} and {allowed_largest:g}), although every tensor arrived unchanged",
    )


image_processor = functools.lru_cache(maxsize=1)(load_image_processor)  # a run's is the same at every sync


def with_picture(sequences: list[list[int]], processor: ImageProcessor) -> tuple[list[list[int]], list[tuple[Image, ...]], ImageBatch | None]:
    """The sequences, and before the first half of each a picture of noise where the sequence can hold its tokens: what vision tower and deepstack compute is
    part of the proof. Returns ids, the images of each for the engines, and the images of all for the trainers."""
    image = processor.image(noise_picture(), "the weight probe")
    mark = processor.expanded(processor.mark_ids, [image], "the weight probe")
    plain = [[id_ for id_ in ids if id_ not in processor.mark_ids] for ids in sequences]
    prompts = [Prompt(number, "", [*mark, *ids[len(mark) :]], None, {}, (image,)) for number, ids in enumerate(plain) if len(mark) < len(ids)]
    prompts += [Prompt(number, "", ids, None) for number, ids in enumerate(plain)]
    batch = image_batch(prompts, [len(prompt.ids) for prompt in prompts], processor)
    return [prompt.ids for prompt in prompts], [prompt.images for prompt in prompts], batch


def noise_picture() -> bytes:
    """A PNG of 64 × 64 random pixels, the same everywhere."""
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def probe_sequences(config: Config) -> list[list[int]]:
    """Fixed pseudo-random ids, the same in every run of a model; as long as the engine admits, 24 ids at most."""
    vocabulary = model_values(config)["vocab_size"]
    length = min(PROBE_LENGTH, config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)
    return np.random.default_rng(0).integers(0, vocabulary, (PROBES, length)).tolist()


def model_values(config: Config) -> dict[str, Any]:
    """config.json of the run's model, with a nested text configuration's keys on top."""
    values = json.loads((Path(config.model.path) / "config.json").read_text())
    return dict(values | values.get("text_config", {}))
