"""A stand-in for `vime train` in tests of the runner: `fake_train.py CONFIG --out RUN` writes a run directory as vime does, with a curve made up from the seed.

How it behaves is said by a file `behaviour.json` in the current results root (two levels above RUN), so that the command stays the same for all tests:
{"seed-100": "crash at 3"}, or {"<cell key>/seed-100": …} for one cell; the behaviours are the keys of BEHAVIOURS below, `ok` is the default.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP_S = 0.01
PROVENANCE: dict[str, Any] = {"commit": "0" * 40, "host": "a test", "versions": {"fake": "1"}, "attempts": []}


class FakeRun:
    def __init__(self, config: dict[str, Any], out: Path):
        self.config, self.out = config, out
        self.steps = int(config["train"]["steps"])
        self.random = random.Random(config["seed"])
        out.mkdir(parents=True, exist_ok=True)
        self._json(
            "manifest.json",
            {"schema_version": 1, "labels": config["labels"], "seed": config["seed"], "planned_steps": self.steps} | PROVENANCE,
        )
        (out / "config.yaml").write_text(json.dumps(config))
        self._json("environment.json", {name: value for name, value in os.environ.items() if "VISIBLE_DEVICES" in name})
        self.event("start")

    def _json(self, name: str, value: Any) -> None:
        (self.out / name).write_text(json.dumps(value))

    def _line(self, name: str, record: dict[str, Any]) -> None:
        with (self.out / name).open("a") as stream:
            stream.write(json.dumps(record) + "\n")

    def event(self, kind: str, **fields: Any) -> None:
        self._line("events.jsonl", {"time": time.time(), "event": kind, **fields})

    def step(self, step: int) -> None:
        time.sleep(STEP_S)
        reward = 0.35 + 0.6 * min(1.0, 2 * step / self.steps) + self.random.gauss(0, 0.005)
        values = {
            "rollout/reward_mean": reward,
            "train/logprob_gap_mean": 1e-7,
            "train/logprob_gap_max": 1e-6,
            "rollout/nll_minus_entropy_z": self.random.gauss(0, 1),
            "perf/step_s": STEP_S,
        }
        self._line("metrics.jsonl", {"step": step, "time": time.time(), "metrics": values})
        self.event("weight_sync", version=step + 1, bytes=764288, tensors=22, digest=f"{step:032x}", received="digest", held={"method": "digest"}, seconds=0.01)

    def first(self, count: int) -> None:
        for step in range(count):
            self.step(step)


def ok(run: FakeRun, argument: str) -> int:
    print("training", flush=True)
    run.first(run.steps)
    return 0


def crash(run: FakeRun, argument: str) -> int:
    run.first(int(argument))
    run.event("error", stage="train", text="train: loss is not finite at step 3 (nan)")
    print("vime: error: train: loss is not finite at step 3 (nan)", file=sys.stderr, flush=True)
    return 3


def infra(run: FakeRun, argument: str) -> int:
    """Lost to a full disk, on the first `argument` attempts."""
    counter = run.out.parent / f"{run.out.name}.attempts"
    made = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(made + 1))
    if made < int(argument):
        print("OSError: [Errno 28] No space left on device", file=sys.stderr, flush=True)
        return 3
    return ok(run, "")


def short(run: FakeRun, argument: str) -> int:
    run.first(int(argument))
    return 0


def killed(run: FakeRun, argument: str) -> int:
    run.first(int(argument))
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def stall(run: FakeRun, argument: str) -> int:
    run.first(int(argument))
    time.sleep(600)
    return 0


def torn(run: FakeRun, argument: str) -> int:
    run.first(int(argument))
    with (run.out / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 7, "ti')
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def deaf(run: FakeRun, argument: str) -> int:
    """Ignores SIGTERM, and has a child that went to a session of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(
        [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"], start_new_session=True
    )
    (run.out / "child.pid").write_text(f"{child.pid} {os.getpid()}")
    run.first(int(argument))
    time.sleep(600)
    return 0


def litter(run: FakeRun, argument: str) -> int:
    """Finishes, and leaves a process behind."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (run.out / "child.pid").write_text(str(child.pid))
    return ok(run, "")


def assassin(run: FakeRun, argument: str) -> int:
    """Kills the process that started its guard: the runner, a worker of pytest-xdist for instance."""
    run.first(3)
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    runner = int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))
    (run.out / "child.pid").write_text(f"{os.getpid()}")
    os.kill(runner, signal.SIGKILL)
    time.sleep(600)
    return 0


def fault(run: FakeRun, argument: str) -> int:
    """Trains to the end and learns nothing."""
    for step in range(run.steps):
        time.sleep(STEP_S)
        values = {
            "rollout/reward_mean": 0.34 + run.random.gauss(0, 0.005),
            "train/logprob_gap_mean": 1e-7,
            "train/logprob_gap_max": 1e-6,
            "rollout/nll_minus_entropy_z": 0.1,
        }
        run._line("metrics.jsonl", {"step": step, "time": time.time(), "metrics": values})
    return 0


BEHAVIOURS: dict[str, Callable[[FakeRun, str], int]] = {
    name: globals()[name] for name in ("ok", "crash", "infra", "short", "killed", "stall", "torn", "deaf", "litter", "assassin", "fault")
}


def main() -> int:
    config = json.loads(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    plan = out.parent.parent / "behaviour.json"
    told = json.loads(plan.read_text()) if plan.exists() else {}
    behaviour = told.get(f"{out.parent.name}/{out.name}") or told.get(out.name, "ok")
    name, _, argument = behaviour.partition(" at ")
    return BEHAVIOURS[name](FakeRun(config, out), argument)


if __name__ == "__main__":
    sys.exit(main())
