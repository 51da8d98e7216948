"""One run of a cell: write its configuration, start its command, follow it, end it in time, and record how it ended in runner.json."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from e2e.classify import Ending, classify
from e2e.code_version import CHECKOUT
from e2e.follow import Follower, Follows
from e2e.leases import LeaseError
from e2e.live import Display, RunTitle
from e2e.process import Exit, GuardedProcess
from e2e.records import RECORD, RunRecord, write_json
from e2e.run_plan import INPUT, RunPlan, finished_before, finished_record
from matrix.declarations import Limits
from matrix.outcome import Outcome

OUTPUT = "stdout.log"
SUPERSEDED = "superseded"
POLL_S = 0.3
INFRA_RETRIES = 2
TAIL_BYTES = 16_384
ELSEWHERE_WAIT_S = 24 * 3600.0  # for another session that makes the same run


@contextmanager
def own(plan: RunPlan, display: Display) -> Iterator[None]:
    """No other session makes or moves this run meanwhile: two on one results root would otherwise write into one directory."""
    place = plan.directory.parent
    place.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place / f".{plan.directory.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        display.say(f"{_title(plan)}  is being made by another session: waiting for it")
        try:
            lock.acquire(timeout=ELSEWHERE_WAIT_S)
        except Timeout:
            raise LeaseError(f"{_title(plan)} is still being made by another session after {ELSEWHERE_WAIT_S / 3600:.0f} h ({place})") from None
    try:
        yield
    finally:
        lock.release()


def reusable(plan: RunPlan, display: Display) -> RunRecord | None:
    """The record of a finished run that is the same one (`finished_record`), said; or None, and why one that lies there is not."""
    earlier = finished_before(plan)
    found = finished_record(plan)
    if found:
        other = " by other code" if earlier and "code" in earlier.differs else ""
        display.say(f"{_title(plan)}  finished before{other} ({found.steps} steps): not run again; --rerun does")
    elif earlier:
        display.say(f"{_title(plan)}  finished before with another {' and '.join(earlier.differs)}: made again")
    return found


def run(plan: RunPlan, display: Display, *, retries: int = INFRA_RETRIES) -> RunRecord:
    """Make the run; one lost to INFRA is made again, at most `retries` times, on record.

    Ctrl-C ends the run's processes within 10 s, is recorded, and goes on to the caller.
    """
    earlier: list[dict[str, Any]] = []
    while True:
        record = _attempt(plan, display, earlier)
        if record.infra_class is None or len(earlier) >= retries:
            return record
        display.say(f"{_title(plan)}  lost to the machine ({record.infra_class}): {record.reason}; trying again")
        earlier.append({name: value for name, value in asdict(record).items() if name not in ("earlier", "command")})


def _title(plan: RunPlan, attempt: int = 1) -> RunTitle:
    return RunTitle(str(plan.cell), plan.seed, attempt)


def _attempt(plan: RunPlan, display: Display, earlier: list[dict[str, Any]]) -> RunRecord:
    title = _title(plan, len(earlier) + 1)
    follower = _prepare(plan)
    begun = _begun(plan, earlier)
    interrupted: KeyboardInterrupt | None = None
    write_json(plan.directory / RECORD, asdict(begun))
    with GuardedProcess(begun.command, plan.directory / OUTPUT, CHECKOUT, begun.environment, plan.lease.descriptors) as process:
        begun = replace(begun, pid=process.pid)
        write_json(plan.directory / RECORD, asdict(begun))
        try:
            exit_, stopped_by = _follow(process, follower, plan.limits, lambda elapsed: display.update(title, follower.progress, elapsed))
        except KeyboardInterrupt as error:
            exit_, stopped_by, interrupted = process.stop(), "interrupted", error
    record = _ended(plan, begun, exit_, stopped_by, follower)
    write_json(plan.directory / RECORD, asdict(record))
    if interrupted is not None:
        raise interrupted
    display.say(f"{title}  {'finished' if record.finished else record.outcome}: {record.reason} in {time.time() - record.started:.0f} s")
    return record


def _prepare(plan: RunPlan) -> Follows:
    """The run's directory with what it is given; what will follow it."""
    _supersede(plan.directory)
    plan.directory.mkdir(parents=True)
    (plan.directory / INPUT).write_text(json.dumps(plan.config, indent=1) + "\n", encoding="utf-8")  # JSON is YAML too
    if plan.framework is None or plan.framework.format == "vime":
        return Follower(plan.directory, plan.cell.rule.metric, plan.planned)
    from e2e.foreign import ForeignFollower, write_manifest

    write_manifest(plan, plan.framework)
    return ForeignFollower(plan, plan.framework)


def _follow(process: GuardedProcess, follower: Follows, limits: Limits, show: Callable[[float], None]) -> tuple[Exit, str | None]:
    """Until the run ends or a limit ends it."""
    begin = time.monotonic()
    while (exit_ := process.wait(POLL_S)) is None:
        follower.look()
        elapsed = time.monotonic() - begin
        show(elapsed)
        reason = _over(limits, follower, elapsed)
        if reason is not None:
            exit_ = process.stop()
            return exit_, None if exit_.by_itself else reason  # it may have ended in the same moment
    return exit_, None


def _over(limits: Limits, follower: Follows, elapsed: float) -> str | None:
    progress = follower.progress
    if elapsed > limits.wall_s:
        return f"over the wall limit of {limits.wall_s:g} s, in stage '{progress.stage}'"
    if not progress.done and elapsed > limits.start_s:
        return f"no step within the start limit of {limits.start_s:g} s, in stage '{progress.stage}'"
    if progress.done and follower.quiet_s > limits.stall_s:
        return f"stalled: nothing recorded for {limits.stall_s:g} s, in stage '{progress.stage}'"
    return None


def _begun(plan: RunPlan, earlier: list[dict[str, Any]]) -> RunRecord:
    """The record of a run whose end nobody saw: it stands until the end is recorded, so a runner that is killed leaves no run that looks whole."""
    return RunRecord(
        cell=str(plan.cell),
        seed=plan.seed,
        command=plan.full_command(),
        config_hash=plan.hash,
        code_hash=plan.code,
        started=time.time(),
        ended=None,
        exit=None,
        signal=None,
        stopped_by=None,
        outcome=str(Outcome.INCOMPLETE),
        reason="it runs, or its runner was lost: how it ended is not recorded",
        infra_class=None,
        steps=0,
        planned_steps=plan.planned,
        leased_devices=list(plan.lease.devices),
        attempt=len(earlier) + 1,
        left_over=[],
        host=platform.node(),
        environment=plan.environment(),
        earlier=list(earlier),
    )


def _ended(plan: RunPlan, begun: RunRecord, exit_: Exit, stopped_by: str | None, follower: Follows) -> RunRecord:
    progress = follower.look(last=True)
    tail = _tail(plan.directory / OUTPUT)
    allowed = progress.early_stop if plan.cell.rule.early_stop else None
    error = progress.error or (progress.unreadable if exit_.code == 0 else None)
    ending: Ending = classify(exit_, progress.done, plan.planned, stopped_by=stopped_by, early_stop=allowed, error=error, tail=tail)
    return replace(
        begun,
        ended=time.time(),
        exit=exit_.code,
        signal=exit_.signal,
        stopped_by=stopped_by,
        outcome=None if ending.outcome is None else str(ending.outcome),
        reason=ending.reason,
        infra_class=ending.infra,
        steps=progress.done,
        left_over=list(exit_.left_over),
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
