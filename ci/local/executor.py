"""Runs a pipeline on this machine: one loop, which alone changes the build's state, fed by processes that end and by what steps ask of `buildkite-agent`."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci.local.answers import Answers
from ci.local.graph import Graph
from ci.local.interpolate import interpolated
from ci.local.process import GRACE_S, Running
from ci.local.server import Server
from ci.local.steps import DONE, WORST, Attempt, Job, State, Step
from ci.local.store import Store

TICK_S = 0.2


@dataclass
class Options:
    """`agents` run at once, for steps of `queues`. `release`: values of a block step's field by its key; a block without them stays blocked"""

    folder: Path
    checkout: Path
    build: str = "local"
    agents: int = 2
    queues: tuple[str, ...] = ("cpu", "default")
    release: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    apart: bool = False  # each job in an empty folder of its own, as on an agent, instead of in the checkout
    minute_s: float = 60.0  # seconds that a minute of timeout_in_minutes takes
    grace_s: float = GRACE_S
    upload_limit: int = 500
    say: Callable[[str], None] = print


class Build:
    """A build. `run` returns when nothing can run any more."""

    def __init__(self, options: Options):
        self.options = options
        self.graph = Graph(options.upload_limit, self._released)
        self.events: queue.Queue[tuple[str, Any, Any]] = queue.Queue()
        self.store = Store(options.folder)
        self.answers = Answers(self.graph, self.store)
        self.running: dict[int, tuple[Job, Running]] = {}
        self.started: list[str] = []  # names of jobs, in the order they were started
        self.canceled = False

    # ---- the loop -------------------------------------------------------------------------------------------------------------------------------------
    def run(self, pipeline: dict[str, Any]) -> State:
        """The build's state: passed, failed, canceled, or blocked where only a person can go on and everything else passed."""
        self.graph.add(interpolated(pipeline, self.options.environment))
        with Server(self.events) as self.server:
            try:
                while self._advance():
                    self._event()
            except KeyboardInterrupt:
                self.cancel("interrupted")
            finally:
                self._end_all()
        self._record()
        return self.state

    @property
    def state(self) -> State:
        if self.canceled:
            return State.CANCELED
        return State.FAILED if self.graph.failed else State.PASSED

    def _advance(self) -> bool:
        """Bring every step as far as it comes, start what may start; whether anything runs."""
        self.graph.advance()
        while self._start():
            self.graph.advance()  # a job that ended without a process lets others go on
        return bool(self.running)

    def _released(self, step: Step, fields: list[str]) -> bool:
        given = self.options.release
        if not ((fields and all(name in given for name in fields)) or step.key in given):
            return False
        for name in fields:
            self.store.set(name, given.get(name, ""))
        return True

    # ---- jobs -----------------------------------------------------------------------------------------------------------------------------------------
    def _start(self) -> bool:
        """Start jobs by priority, then age, as agents are free. Whether one ended at once, because nobody here can run it."""
        waiting = [job for step in self.steps if step.kind == "command" and self._open(step) for job in step.jobs if job.state is State.WAITING]
        for job in sorted(waiting, key=lambda job: (-int(job.step.told.get("priority", 0)), job.number)):
            if lacks := self._lacking(job):
                self._finish(job, *lacks, again=False)
                return True
            if len(self.running) < self.options.agents and self._slot(job):
                self._launch(job)
        return False

    def _lacking(self, job: Job) -> tuple[int, str] | None:
        """Why no agent here can run the job, with the exit code that this amounts to."""
        told = job.step.told
        served = str(_agents(told).get("queue", "default"))
        if served not in self.options.queues:
            return -1, f"no agent here serves queue {served}"
        if told.get("image"):
            return 1, f"wants the image {told['image']}: containers are not run here"
        missing = [name for name in _secrets(told) if name not in self.options.environment]
        return (1, f"secret {missing[0]} is not set here") if missing else None

    def _open(self, step: Step) -> bool:
        return step.state in (State.WAITING, State.RUNNING) and self.graph.ready(step) is State.PASSED

    def _slot(self, job: Job) -> bool:
        """Whether its concurrency group has room, and, where order counts, nobody of it waits before it."""
        told = job.step.told
        group = told.get("concurrency_group")
        if group is None:
            return True
        peers = [other for step in self.steps if step.told.get("concurrency_group") == group for other in step.jobs]
        if sum(other.state is State.RUNNING for other in peers) >= int(told["concurrency"]):
            return False
        if told.get("concurrency_method", "ordered") == "eager":
            return True
        return not any(other.state is State.WAITING and other.number < job.number for other in peers)

    def _launch(self, job: Job) -> None:
        attempt = Attempt(len(job.attempts) + 1)
        job.attempts.append(attempt)
        folder = self.options.folder / "jobs" / f"{job.number:03d}-{attempt.number}"
        cwd = folder / "checkout" if self.options.apart else self.options.checkout
        cwd.mkdir(parents=True, exist_ok=True)
        job.state = job.step.state = State.RUNNING
        running = Running(job.step.commands, folder, cwd, self._environment(job))
        attempt.pid, attempt.log = running.pid, str(running.log)
        self.running[job.number] = (job, running)
        self.started.append(job.name)
        self.options.say(f"▶ {job.name}" + (f" (attempt {attempt.number})" if attempt.number > 1 else ""))
        threading.Thread(target=lambda: self.events.put(("exit", job.number, running.wait())), daemon=True).start()

    def _environment(self, job: Job) -> dict[str, str]:
        told = job.step.told
        own = {
            "BUILDKITE": "true",
            "BUILDKITE_BUILD_ID": self.options.build,
            "BUILDKITE_JOB_ID": str(job.number),
            "BUILDKITE_STEP_KEY": job.step.key or "",
            "BUILDKITE_LABEL": str(told.get("label", "")),
            "BUILDKITE_RETRY_COUNT": str(len(job.attempts) - 1),
            "VIME_LOCAL_BUILD": str(self.server.socket),
        }
        if job.step.parallelism > 1:
            own |= {"BUILDKITE_PARALLEL_JOB": str(job.index), "BUILDKITE_PARALLEL_JOB_COUNT": str(job.step.parallelism)}
        said = {name: str(value) for name, value in (told.get("env") or {}).items()}
        path = f"{self.server.path}{os.pathsep}{self.options.environment.get('PATH', os.defpath)}"
        hidden = {name for name in self.options.environment if name.startswith("BUILDKITE_")}
        kept = {name: value for name, value in self.options.environment.items() if name not in hidden}
        return {**kept, **said, **own, "PATH": path}

    def _event(self) -> None:
        try:
            kind, what, more = self.events.get(timeout=TICK_S)
        except queue.Empty:
            self._deadlines()
            return
        if kind == "exit" and what in self.running:
            self._ended(*self.running.pop(what), more)
        elif kind == "request":
            more.put(self.answers.answer(what, self._asker(what["job"])))

    def _asker(self, job: str) -> Step | None:
        return next((found.step for found, _ in self.running.values() if str(found.number) == job), None)

    def _ended(self, job: Job, running: Running, exit_: int) -> None:
        attempt = job.attempts[-1]
        attempt.exit, attempt.seconds = exit_, time.monotonic() - running.started
        left = running.end(self.options.grace_s)
        if left:
            self.options.say(f"  {job.name} left {left} processes; they were ended")
        cwd = running.folder / "checkout" if self.options.apart else self.options.checkout
        for pattern in _listed(job.step.told.get("artifact_paths")):
            self.store.send(pattern, cwd)
        self._finish(job, exit_)

    def _finish(self, job: Job, exit_: int, why: str = "", again: bool = True) -> None:
        step = job.step
        if not job.attempts:
            job.attempts.append(Attempt(1))
        job.attempts[-1].exit, job.attempts[-1].note = exit_, why
        limit = step.retries(exit_) if exit_ and again and not self.canceled else 0
        if len(job.attempts) <= limit:
            job.state = State.WAITING
            self.options.say(f"↻ {job.name}: exit {exit_}, retry {len(job.attempts)} of {limit}")
            return
        job.state = State.PASSED if exit_ == 0 else State.SOFT_FAILED if step.soft(exit_) else State.FAILED
        mark = {State.PASSED: "✓", State.SOFT_FAILED: "~", State.FAILED: "✗"}[job.state]
        self.options.say(f"{mark} {job.name}  {job.attempts[-1].seconds:.1f} s" + (f"  exit {exit_}" if exit_ else "") + (f"  {why}" if why else ""))
        if job.state is State.FAILED and job.attempts[-1].log:
            self._tail(Path(job.attempts[-1].log))
        self._settle(step)

    def _settle(self, step: Step) -> None:
        if all(job.state in DONE for job in step.jobs):
            step.state = min((job.state for job in step.jobs), key=WORST.index)

    def _tail(self, log: Path, lines: int = 20) -> None:
        text = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
        self.options.say("\n".join(f"    {line}" for line in text))

    def _deadlines(self) -> None:
        for number, (job, running) in list(self.running.items()):
            minutes = job.step.told.get("timeout_in_minutes")
            if minutes and time.monotonic() - running.started > minutes * self.options.minute_s:
                del self.running[number]
                running.end(self.options.grace_s)
                job.attempts[-1].exit, job.attempts[-1].note = running.wait(), f"ended after {minutes} minutes"
                job.attempts[-1].seconds = time.monotonic() - running.started
                job.state = State.TIMED_OUT
                self.options.say(f"✗ {job.name}: {job.attempts[-1].note}")
                self._settle(job.step)

    def cancel(self, why: str) -> None:
        self.canceled = True
        self.options.say(f"canceled: {why}; ending {len(self.running)} job(s)")
        for step in self.steps:
            for job in step.jobs:
                job.state = job.state if job.state in DONE else State.CANCELED
            step.state = step.state if step.state in DONE else State.CANCELED

    def _end_all(self) -> None:
        for _, running in self.running.values():
            running.end(self.options.grace_s)
        self.running.clear()

    # ---- afterwards -----------------------------------------------------------------------------------------------------------------------------------
    @property
    def steps(self) -> list[Step]:
        return self.graph.steps

    def step(self, key: str) -> Step:
        """The step of that key. Raises KeyError."""
        found = self.graph.find(key)
        if found is None:
            raise KeyError(key)
        return found

    def _record(self) -> None:
        jobs = [
            {"name": job.name, "key": job.step.key, "state": str(job.state), "attempts": [vars(attempt) for attempt in job.attempts]}
            for step in self.steps
            for job in step.jobs
        ]
        record = {"build": self.options.build, "state": str(self.state), "jobs": jobs, "started": self.started}
        (self.options.folder / "build.json").write_text(json.dumps(record, indent=1) + "\n")


def _agents(told: dict[str, Any]) -> dict[str, str]:
    agents = told.get("agents") or {}
    return dict(item.split("=", 1) for item in agents) if isinstance(agents, list) else agents


def _secrets(told: dict[str, Any]) -> Iterable[str]:
    return list((told.get("secrets") or {}).values()) if isinstance(told.get("secrets"), dict) else told.get("secrets") or []


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])
