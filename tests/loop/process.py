"""A real `vime` command in a process of its own, and what is left of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import psutil

from tests.loop.faulty import Fault

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "grpo-spell-backward.yaml"
MODEL = ROOT / "matrix" / "warmstarts" / "qwen3-4b-spell-backward"
MARK = "VIME_TEST_PROCESS"  # inherited by everything the command starts, whatever session or parent it ends up with
# A run in miniature: 3 steps of 4 × 4 answers, every sync proven.
TINY = {
    "rollout.prompts_per_step": 4,
    "rollout.samples_per_prompt": 4,
    "train.steps": 3,
    "train.warmup_steps": 0,
    "eval.every": 0,
    "weights.verify_held_every": 1,
    "tracking.samples_per_step": 1,
}
NOT_COMPARED = ("perf/",)  # seconds and memory differ from run to run


def settings(**changes: Any) -> list[str]:
    """`--set` arguments of the tiny run with changes (`__` stands for the dot)."""
    values = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    return [part for key, value in values.items() for part in ("--set", f"{key}={json.dumps(value)}")]


class Vime:
    """A running command; a context manager that ends whatever is left of it."""

    def __init__(self, *arguments: str | Path, out: Path | None = None, fault: Fault | None = None, cwd: Path = ROOT):
        self.out, self.mark, self._ended = out, uuid.uuid4().hex, ""
        self.scratch = Path(tempfile.mkdtemp(prefix="vt-", dir="/tmp"))  # its temporary files; short, because Ray's sockets lie in it
        self.log = self.scratch.with_suffix(".log")
        module = ["vime.cli"] if fault is None else ["tests.loop.faulty", json.dumps(asdict(fault))]
        command = [sys.executable, "-m", *module, *map(str, arguments), *(["--out", str(out)] if out else [])]
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self.scratch)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=cwd, env=environment, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes():
            process.kill()
        self.process.wait(30)
        self._ended = self.output
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.log.unlink(missing_ok=True)

    @property
    def output(self) -> str:
        """Both streams of the command and of whatever writes to them."""
        return self._ended or self.log.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Live processes that inherited the mark or work in the command's temporary directory (some of Ray's overwrite their environment)."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            ours = process.environ().get(MARK) == self.mark or any(str(self.scratch) in word for word in process.cmdline())
            return ours and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def wait(self, seconds: float = 170) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s: {self.output}") from None

    def until(self, ready: Callable[[], bool], what: str, seconds: float = 170) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}: {self.output}"
            assert time.monotonic() < deadline, f"{what} did not come in {seconds} s: {self.output}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """To the command alone, or to its process group, as a terminal's Ctrl-C does."""
        os.killpg(self.process.pid, number) if group else os.kill(self.process.pid, number)

    def gone(self, seconds: float) -> list[str]:
        """What is still there of it after at most `seconds`: its processes and its temporary files."""
        deadline = time.monotonic() + seconds
        while (left := [*self._named(), *self._files()]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _named(self) -> Iterator[str]:
        for process in self.processes():
            try:
                yield f"{process.pid} {' '.join(process.cmdline())[:200]}"
            except psutil.Error:
                continue

    def _files(self) -> Iterator[str]:
        yield from (str(path) for path in self.scratch.glob("vime-*"))

    # ---- what it wrote ----------------------------------------------------------------------------------------------------------------------------------

    @property
    def message(self) -> str:
        """The command's error message; asserts that it is the only one and that nothing looks like a traceback."""
        output = self.output
        assert "Traceback" not in output, output
        found = [line for line in output.splitlines() if line.startswith("vime: ")]
        assert len(found) == 1, output
        return found[0].removeprefix("vime: ").removeprefix("error: ")


def finished(*arguments: str | Path, code: int = 0, seconds: float = 170, **options: Any) -> Vime:
    """Run a command to its end; asserts its exit code and that nothing is left of it."""
    with Vime(*arguments, **options) as run:
        assert run.wait(seconds) == code, run.output
        assert run.gone(10) == []
    return run


def lines(path: Path) -> list[dict[str, Any]]:
    """The whole records of a file; a killed writer may have torn one."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines(out / "events.jsonl") if event["event"] == kind]


def attempts(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "manifest.json").read_text())["attempts"]


def curve(out: Path) -> dict[int, dict[str, float]]:
    """Metrics by step, the later record of a step counting, without those that no two runs share."""
    return {
        record["step"]: {key: value for key, value in record["metrics"].items() if not key.startswith(NOT_COMPARED)} for record in lines(out / "metrics.jsonl")
    }


def checkpoints(out: Path) -> Sequence[str]:
    """Names of the whole checkpoints."""
    return sorted(path.parent.name for path in (out / "checkpoints").glob("step-*/vime.json"))
