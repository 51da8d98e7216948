"""One run of a cell: write its configuration, start `vime train` on it, follow it, end it in time, and record how it ended in runner.json."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from e2e.classify import Ending, classify
from e2e.code_version import CHECKOUT, code_hash
from e2e.follow import Follower
from e2e.live import Display, RunTitle
from e2e.process import Exit, GuardedProcess
from matrix.loader import DeclaredCell, Matrix
from matrix.resolver import config_hash, resolve

RECORD = "runner.json"
OUTPUT = "stdout.log"
INPUT = "input.yaml"
SUPERSEDED = "superseded"
POLL_S = 0.3
INFRA_RETRIES = 2
TAIL_BYTES = 16_384

TRAIN = (sys.executable, "-m", "vime.cli", "train")  # the command; `INPUT --out RUN` follows


@dataclass(frozen=True)
class Limits:
    """Seconds: to the first record of a step, without any record after it, for the whole run."""

    start_s: float
    stall_s: float
    wall_s: float


@dataclass
class RunPlan:
    """One run to be made."""

    cell: DeclaredCell
    seed: int
    root: Path  # of the results
    config: dict[str, Any]
    hash: str
    limits: Limits
    command: Sequence[str] = TRAIN
    overrides: Sequence[str] = ()  # key=value for `--set`: planted faults
    devices: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        return self.root / self.cell.key / f"seed-{self.seed}"

    @property
    def planned(self) -> int:
        return self.cell.recipe.value.judge.planned_steps

    def full_command(self) -> list[str]:
        sets = [part for override in self.overrides for part in ("--set", override)]
        return [*self.command, str(self.directory / INPUT), *sets, "--out", str(self.directory)]


@dataclass(frozen=True)
class RunRecord:
    """What runner.json says."""

    cell: str
    seed: int
    command: list[str]
    config_hash: str
    code_hash: str
    started: float
    ended: float
    exit: int | None
    signal: str | None
    stopped_by: str | None
    outcome: str | None  # null: finished, can be judged
    reason: str
    infra_class: str | None
    steps: int
    planned_steps: int
    leased_devices: list[int]
    attempt: int
    left_over: list[str]
    earlier: list[dict[str, Any]] = field(default_factory=list)  # attempts lost to INFRA before this one
    schema_version: int = 1

    @property
    def finished(self) -> bool:
        return self.outcome is None


def plan_run(matrix: Matrix, cell: DeclaredCell, seed: int, root: Path, command: Sequence[str] = TRAIN, overrides: Sequence[str] = ()) -> RunPlan:
    """The run of `cell` with `seed`. Raises as `matrix.resolve` does."""
    config = resolve(cell, seed, matrix)
    limits = cell.hardware.value.limits
    return RunPlan(cell, seed, root.resolve(), config, config_hash(config, matrix), Limits(limits.start_s, limits.stall_s, limits.wall_s), command, overrides)


def finished_record(plan: RunPlan) -> RunRecord | None:
    """The record of a finished run of the same configuration, command and code, or None."""
    record = read_record(plan.directory)
    if record is None or not record.finished:
        return None
    same = record.config_hash == plan.hash and record.code_hash == code_hash() and record.command == plan.full_command()
    return record if same else None


def read_record(directory: Path) -> RunRecord | None:
    file = directory / RECORD
    if not file.is_file():
        return None
    try:
        return RunRecord(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return None  # of another version, or torn: the run counts as not made


def run(plan: RunPlan, display: Display, *, rerun: bool = False, retries: int = INFRA_RETRIES) -> RunRecord:
    """Make the run, unless a finished one of the same configuration, command and code lies there; a run lost to INFRA is made again, on record.

    Ctrl-C ends the run's processes within 10 s, is recorded, and goes on to the caller.
    """
    if not rerun and (found := finished_record(plan)):
        display.say(f"{RunTitle(str(plan.cell), plan.seed)}  finished before ({found.steps} steps): not run again; --rerun does")
        return found
    earlier: list[dict[str, Any]] = []
    while True:
        record = _attempt(plan, display, earlier)
        if record.infra_class is None or len(earlier) >= retries:
            return record
        display.say(f"{RunTitle(str(plan.cell), plan.seed)}  lost to the machine ({record.infra_class}): {record.reason}; trying again")
        earlier.append({name: value for name, value in asdict(record).items() if name not in ("earlier", "command")})


def _attempt(plan: RunPlan, display: Display, earlier: list[dict[str, Any]]) -> RunRecord:
    _supersede(plan.directory)
    plan.directory.mkdir(parents=True)
    (plan.directory / INPUT).write_text(json.dumps(plan.config, indent=1) + "\n", encoding="utf-8")  # JSON is YAML too
    title, started = RunTitle(str(plan.cell), plan.seed, len(earlier) + 1), time.time()
    follower = Follower(plan.directory, plan.cell.recipe.value.judge.metric, plan.planned)
    interrupted: KeyboardInterrupt | None = None
    with GuardedProcess(plan.full_command(), plan.directory / OUTPUT, CHECKOUT, plan.environment) as process:
        try:
            exit_, stopped_by = _follow(process, follower, plan.limits, title, display)
        except KeyboardInterrupt as error:
            exit_, stopped_by, interrupted = process.stop(), "interrupted", error
    record = _record(plan, exit_, stopped_by, follower, started, earlier)
    write_json(plan.directory / RECORD, asdict(record))
    if interrupted is not None:
        raise interrupted
    display.say(f"{title}  {'finished' if record.finished else record.outcome}: {record.reason} in {record.ended - record.started:.0f} s")
    return record


def _follow(process: GuardedProcess, follower: Follower, limits: Limits, title: RunTitle, display: Display) -> tuple[Exit, str | None]:
    """Until the run ends or a limit ends it."""
    begin = time.monotonic()
    while (exit_ := process.wait(POLL_S)) is None:
        progress, elapsed = follower.look(), time.monotonic() - begin
        display.update(title, progress, elapsed)
        reason = _over(limits, follower, elapsed)
        if reason is not None:
            exit_ = process.stop()
            return exit_, None if exit_.by_itself else reason  # it may have ended in the same moment
    follower.look()
    return exit_, None


def _over(limits: Limits, follower: Follower, elapsed: float) -> str | None:
    progress = follower.progress
    if elapsed > limits.wall_s:
        return f"over the wall limit of {limits.wall_s:g} s, in stage '{progress.stage}'"
    if not progress.done and elapsed > limits.start_s:
        return f"no step within the start limit of {limits.start_s:g} s, in stage '{progress.stage}'"
    if progress.done and follower.quiet_s > limits.stall_s:
        return f"stalled: nothing recorded for {limits.stall_s:g} s, in stage '{progress.stage}'"
    return None


def _record(plan: RunPlan, exit_: Exit, stopped_by: str | None, follower: Follower, started: float, earlier: list[dict[str, Any]]) -> RunRecord:
    progress = follower.look()
    tail = _tail(plan.directory / OUTPUT)
    allowed = progress.early_stop if plan.cell.recipe.value.judge.early_stop else None
    ending: Ending = classify(exit_, progress.done, plan.planned, stopped_by=stopped_by, early_stop=allowed, error=progress.error, tail=tail)
    return RunRecord(
        cell=str(plan.cell),
        seed=plan.seed,
        command=plan.full_command(),
        config_hash=plan.hash,
        code_hash=code_hash(),
        started=started,
        ended=time.time(),
        exit=exit_.code,
        signal=exit_.signal,
        stopped_by=stopped_by,
        outcome=None if ending.outcome is None else str(ending.outcome),
        reason=ending.reason,
        infra_class=ending.infra,
        steps=progress.done,
        planned_steps=plan.planned,
        leased_devices=list(plan.devices),
        attempt=len(earlier) + 1,
        left_over=list(exit_.left_over),
        earlier=list(earlier),
    )


def _supersede(directory: Path) -> None:
    """Move an earlier run of the same seed aside: it is kept for a person to look at and never judged."""
    if not directory.exists():
        return
    aside = directory.parent / SUPERSEDED
    aside.mkdir(exist_ok=True)
    number = 1
    while (aside / f"{directory.name}.{number}").exists():
        number += 1
    directory.rename(aside / f"{directory.name}.{number}")


def _tail(file: Path) -> str:
    if not file.is_file():
        return ""
    with file.open("rb") as stream:
        stream.seek(max(file.stat().st_size - TAIL_BYTES, 0))
        return stream.read().decode("utf-8", "replace")


def write_json(file: Path, value: Any) -> None:
    """Write whole or not at all."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.replace(file)
