"""What the model wrote at the first, a middle and the last step: samples/step-000012.jsonl of a run directory."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PER_STEP = 4
LONGEST = 600  # characters shown of a text

_STEP = re.compile(r"step-(\d+)\.jsonl")


@dataclass(frozen=True)
class Sample:
    prompt: str
    response: str
    label: str
    reward: str
    remark: str


@dataclass(frozen=True)
class StepSamples:
    step: int
    samples: list[Sample]


def read_samples(run: Path) -> list[StepSamples]:
    """Up to three steps, each with up to four samples; empty for a run without samples. Lines that are not JSON objects are left out (a torn file)."""
    files = sorted((int(match[1]), path) for path in (run / "samples").glob("step-*.jsonl") if (match := _STEP.fullmatch(path.name)))
    if not files:
        return []
    chosen = {0: files[0], len(files) // 2: files[len(files) // 2], len(files) - 1: files[-1]}
    return [StepSamples(step, found) for step, path in chosen.values() if (found := _read(path))]


def _read(path: Path) -> list[Sample]:
    samples = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[:PER_STEP]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            samples.append(_sample(record))
    return samples


def _sample(record: dict[str, Any]) -> Sample:
    reward = record.get("reward")
    remarks = [str(record[key]) for key in ("reward_error",) if record.get(key)] + (["truncated"] if record.get("finish_reason") == "length" else [])
    return Sample(
        prompt=_text(record.get("prompt")),
        response=_text(record.get("response")),
        label=_text(record.get("label")),
        reward="no reward" if reward is None else f"reward {reward:g}" if isinstance(reward, int | float) else str(reward),
        remark=", ".join(remarks),
    )


def _text(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text)} characters)"
