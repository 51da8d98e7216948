"""Small files of every shape a reader knows, made of the same two runs, so that one test can ask the same of all of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REWARD, LOSS, OTHER = "rollout/reward_mean", "train/loss", "备注/熵"
Values = Mapping[str, list[float]]  # metric -> value at step 1, 2, …


def run_values(seed: int, steps: int = 12) -> dict[str, list[float]]:
    """Three metrics whose values are all different, some negative, some with an exponent, none of them an integer."""
    rng = np.random.default_rng(seed)
    return {
        REWARD: [round(float(v), 5) + 1e-7 for v in rng.uniform(0.1, 0.9, steps)],
        LOSS: [-float(v) for v in rng.uniform(1e-6, 9e-5, steps)],
        OTHER: [float(v) for v in rng.uniform(1.01, 3.0, steps)],
    }


@dataclass(frozen=True)
class Shape:
    """`write(values) -> text` of one file; `theirs` says how the source calls the metrics; `by_line`: a line is a whole record."""

    write: Callable[[Values], str]
    format: str
    by_line: bool = True
    metrics: tuple[str, ...] = (REWARD, LOSS, OTHER)
    keyed: bool = True  # every value stands beside its step
    nan: bool = True  # NaN can be written


def rows(values: Values) -> list[tuple[int, dict[str, float]]]:
    return [(step + 1, {name: curve[step] for name, curve in values.items()}) for step in range(len(values[REWARD]))]


def text(value: float) -> str:
    return "nan" if value != value else repr(value)


def lines(records: list[str]) -> str:
    return "".join(record + "\n" for record in records)


def _jsonl(values: Values) -> str:
    return lines([json.dumps({"step": step, "time": 100.0 + step, "metrics": row}, ensure_ascii=False) for step, row in rows(values)])


def _history(values: Values) -> str:
    theirs = {REWARD: "reward", LOSS: "loss"}
    return lines(
        [
            json.dumps({"_step": step, "_timestamp": 100.0 + step, "_runtime": step * 1.5} | {theirs.get(n, n): v for n, v in row.items()}, ensure_ascii=False)
            for step, row in rows(values)
        ]
    )


def _jsonl_long(values: Values) -> str:
    return lines([json.dumps({"step": step, "key": name, "value": value}, ensure_ascii=False) for step, row in rows(values) for name, value in row.items()])


def _table(delimiter: str, comma: bool = False) -> Callable[[Values], str]:
    def write(values: Values) -> str:
        head = delimiter.join(["step", "reward", "Training Loss", OTHER])
        body = [delimiter.join([str(step), *(text(value) for value in row.values())]) for step, row in rows(values)]
        return lines([head, *([line.replace(".", ",") for line in body] if comma else body)])

    return write


def _columns(values: Values) -> str:
    return lines([f"{step} {text(row[REWARD])}" for step, row in rows(values)])


def _mllog(values: Values) -> str:
    def point(key: str, value: object, meta: Mapping[str, object]) -> str:
        record = {"namespace": "", "time_ms": 1000 + int(str(meta.get("step", 0))), "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": meta}
        return ":::MLLOG " + json.dumps(record, ensure_ascii=False)

    head = [point("seed", 7, {"lineno": 3}), point("max_steps", 12, {"lineno": 3})]
    theirs = {REWARD: "reward", LOSS: "reduced_train_loss"}
    body = [point("tracked_stats", {theirs.get(n, n): v for n, v in row.items()}, {"samples_count": 256 * step, "step": step}) for step, row in rows(values)]
    return lines([*head, *body])


def _golden(values: Values) -> str:
    theirs = {REWARD: "reward", LOSS: "lm loss"}
    body = {
        theirs.get(name, name): {"start_step": 1, "end_step": len(curve), "step_interval": 1, "values": {str(i + 1): v for i, v in enumerate(curve)}}
        for name, curve in values.items()
    }
    return json.dumps(body, indent=4, ensure_ascii=False) + "\n"


def _nemo(values: Values) -> str:
    theirs = {REWARD: "train/reward"}
    return json.dumps({theirs.get(n, n): {str(i + 1): v for i, v in enumerate(curve)} for n, curve in values.items()}, indent=2, ensure_ascii=False)


def _trl(values: Values) -> str:
    theirs = {REWARD: "reward", LOSS: "loss"}
    steps = [{"step": step} | {theirs.get(n, n): v for n, v in row.items()} for step, row in rows(values)]
    config = {"name": "x", "args": {"seed": "42", "max_steps": "12"}}
    return json.dumps({"config": config, "env": {"torch": "2.11.0", "gpu": "H100"}, "steps": steps}, indent=2, ensure_ascii=False)


def _hf(values: Values) -> str:
    theirs = {REWARD: "reward", LOSS: "loss"}
    history = [{"epoch": step / 12, "step": step} | {theirs.get(n, n): v for n, v in row.items()} for step, row in rows(values)]
    return json.dumps({"best_metric": None, "global_step": 12, "log_history": history, "max_steps": 12}, indent=2, ensure_ascii=False)


def _arrays(values: Values) -> str:
    return json.dumps({"reward": values[REWARD], "loss": values[LOSS], OTHER: values[OTHER]}, indent=4, ensure_ascii=False)


def _wandb(values: Values) -> str:
    names = {"reward": REWARD, "train/loss": LOSS, OTHER: OTHER}
    head = ['"Step"'] + [f'"grpo - a{end}"'.replace(" - a", f" - {name}") for name in names for end in ("", "__MIN", "__MAX")]
    body = [",".join([f'"{step}"', *(f'"{text(row[ours])}"' for ours in names.values() for _ in range(3))]) for step, row in rows(values)]
    return lines([",".join(head), *body])


def _mlflow_csv(values: Values) -> str:
    names = {REWARD: "reward", LOSS: "loss"}
    body = [f"run-1,{names.get(n, n)},{text(v)},{step},{1000 + step}" for step, row in rows(values) for n, v in row.items()]
    return lines(["run_id,key,value,step,timestamp", *body])


def _mlflow_json(values: Values) -> str:
    names = {REWARD: "reward", LOSS: "loss"}
    points = [{"key": names.get(n, n), "value": v, "timestamp": 1000 + step, "step": str(step)} for step, row in rows(values) for n, v in row.items()]
    return json.dumps({"metrics": points}, ensure_ascii=False)


def _swanlab_csv(values: Values) -> str:
    names = {"reward": REWARD, "train/loss": LOSS, OTHER: OTHER}
    head = ["step"] + [f"grpo-1-{name}{end}" for name in names for end in ("_step", "_timestamp")]
    body = [",".join([str(step), *(f"{text(row[ours])},{1000 + step}" for ours in names.values())]) for step, row in rows(values)]
    return lines([",".join(head), *body])


def _swanlab_json(values: Values) -> str:
    names = {"reward": REWARD, "train/loss": LOSS, OTHER: OTHER}
    entries = [{"key": n, "metrics": [{"step": i + 1, "value": v, "timestamp": 1000 + i} for i, v in enumerate(values[ours])]} for n, ours in names.items()]
    return json.dumps({"ok": True, "data": {"list": entries}}, ensure_ascii=False)


RAY = "\x1b[36m(TaskRunner pid=4711, ip=10.0.0.1)\x1b[0m "


def _verl(values: Values) -> str:
    names = {REWARD: "critic/score/mean", LOSS: "actor/loss"}
    noise = [RAY + "Training Progress:   0%|          | 0/12 [00:00<?, ?it/s]", "INFO 11-30 18:00:01 [model.py:12] loading weights, 0.51 s"]
    return lines([*noise, *(RAY + f"step:{step} - " + " - ".join(f"{names.get(n, n)}:{text(v)}" for n, v in row.items()) for step, row in rows(values))])


def _slime(values: Values) -> str:
    names = {REWARD: "rollout/raw_reward"}
    out = []
    for step, row in rows(values):
        stamp = f"[2026-11-30 18:00:{step:02d}] "
        out.append(
            f"{stamp}rollout.py:1 - rollout {step}: {{'rollout/raw_reward': {text(row[REWARD])}, 'note': 'x', '{OTHER}': np.float64({text(row[OTHER])})}}"
        )
        out.append(f"(MegatronTrainRayActor pid=12) step {step}: {{'train/loss': {text(row[LOSS])}, 'train/step': {step}}}")
    del names
    return lines(out)


def _hf_bar(values: Values) -> str:
    out = ["Some weights of the model were not used, 3/4 of them"]
    for step, row in rows(values):
        bar = f"\r{step / 12:4.0%}|#         | {step}/12 [00:{step:02d}<2:43, 22.36s/it]"
        pairs = f"{{'loss': {text(row[LOSS])}, 'reward': '{text(row[REWARD])}', '{OTHER}': {text(row[OTHER])}, 'epoch': 0.1}}"
        out.append(f"{bar}\r                    \r{pairs}")
    return lines(out)


def _megatron_log(values: Values) -> str:
    names = {REWARD: "reward", LOSS: "lm loss"}
    return lines(
        [
            f" [2026-11-30 18:00:01] iteration {step:8d}/      12 | consumed samples: {256 * step:12d} | "
            + " | ".join(f"{names.get(n, n)}: {text(v)}" for n, v in row.items())
            + " |"
            for step, row in rows(values)
        ]
    )


def _openrlhf(values: Values) -> str:
    names = {REWARD: "reward", LOSS: "loss"}
    prefix = "\x1b[36m(PPOTrainer pid=9)\x1b[0m 2026-11-30 18:00:01.123 INFO "
    return lines([f"{prefix}✨ Global step {step}: " + repr({names.get(n, n): v for n, v in row.items()}) for step, row in rows(values)])


SHAPES: dict[str, Shape] = {
    "jsonl": Shape(_jsonl, "jsonl"),
    "wandb history": Shape(_history, "jsonl"),
    "jsonl, one metric a line": Shape(_jsonl_long, "jsonl"),
    "csv": Shape(_table(","), "csv"),
    "csv, semicolon": Shape(_table(";"), "csv"),
    "csv, decimal comma": Shape(_table(";", comma=True), "csv"),
    "tsv": Shape(_table("\t"), "csv"),
    "tsv, decimal comma": Shape(_table("\t", comma=True), "csv"),
    "columns": Shape(_columns, "columns", metrics=("value",)),
    "mllog": Shape(_mllog, "mllog"),
    "megatron golden": Shape(_golden, "megatron-golden", by_line=False),
    "nemo-rl": Shape(_nemo, "nemo-rl", by_line=False),
    "trl reference": Shape(_trl, "trl-reference", by_line=False),
    "hf trainer state": Shape(_hf, "hf-trainer", by_line=False),
    "arrays": Shape(_arrays, "arrays", by_line=False, keyed=False),
    "wandb chart": Shape(_wandb, "wandb-chart"),
    "mlflow csv": Shape(_mlflow_csv, "long-table"),
    "mlflow json": Shape(_mlflow_json, "mlflow", by_line=False),
    "swanlab csv": Shape(_swanlab_csv, "swanlab"),
    "swanlab json": Shape(_swanlab_json, "swanlab", by_line=False),
    "verl console": Shape(_verl, "console"),
    "slime console": Shape(_slime, "console"),
    "hf console": Shape(_hf_bar, "console"),
    "megatron console": Shape(_megatron_log, "console"),
    "openrlhf console": Shape(_openrlhf, "console"),
}


def expected(shape: Shape, values: Values) -> dict[str, list[float]]:
    """What reading must give, under our names."""
    return {"value": values[REWARD]} if shape.metrics == ("value",) else {name: values[name] for name in shape.metrics}


def event_file(path: Path, values: Values, start: int = 1, time: float = 1000.0) -> Path:
    """A TensorBoard event file, encoded here and not by the reader: float32 scalars, one event a value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [b"\x09" + struct.pack("<d", time) + b"\x1a\x0dbrain.Event:2"]
    for index in range(len(values[REWARD])):
        for name, curve in values.items():
            tag = name.encode()
            value = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", curve[index])
            summary = b"\x0a" + bytes([len(value)]) + value
            events.append(b"\x09" + struct.pack("<d", time + index) + b"\x10" + bytes([start + index]) + b"\x2a" + bytes([len(summary)]) + summary)
    path.write_bytes(b"".join(framed(event) for event in events))
    return path


def framed(event: bytes) -> bytes:
    head = struct.pack("<Q", len(event))
    return head + struct.pack("<I", _masked(head)) + event + struct.pack("<I", _masked(event))


def _masked(data: bytes) -> int:
    """CRC-32C bit by bit (the reader uses a table), rotated and shifted as the record format wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
