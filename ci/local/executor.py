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

from ci.local.interpolate import interpolated
from ci.local.process import GRACE_S, Running
from ci.local.server import Server
from ci.local.steps import DONE, GOOD, WORST, Attempt, Job, Refused, State, Step, read_steps
from ci.local.store import Store
from ci.pipeline import jobs_of
from ci.validate import PipelineError, check

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
        self.steps: list[Step] = []  # in the order of the pipeline: what a step uploads follows that step
        self.events: queue.Queue[tuple[str, Any, Any]] = queue.Queue()
        self.store = Store(options.folder)
        self.running: dict[int, tuple[Job, Running]] = {}
        self.created = 0
        self.started: list[str] = []  # names of jobs, in the order they were started
        self.canceled = False

    # ---- the pipeline ---------------------------------------------------------------------------------------------------------------------------------
    def add(self, pipeline: dict[str, Any], after: Step | None = None) -> None:
        """Raises PipelineError or Refused and leaves the build as it was."""
        check(pipeline, None)
        count = sum(jobs_of(step) for step in pipeline["steps"])
        if count > self.options.upload_limit:
            raise PipelineError(f"{count} jobs in one upload; {self.options.upload_limit} is the limit")
        new = list(read_steps(pipeline, self.created))
        have = {step.key for step in self.steps if step.key}
        doubled = [step.key for step in new if step.key in have]
        if doubled:
            raise PipelineError(f"the build has a step with the key {doubled[0]} already")
        for step in new:
            step.told = _inherited(step.told, pipeline) if step.kind == "command" else step.told
        self.created += len(new)
        at = self.steps.index(after) + 1 if after else len(self.steps)
        while after and at < len(self.steps) and after.group is not None and self.steps[at].group is after.group:
            at += 1
        self.steps[at:at] = new
        for step in new:
            if step.kind == "command":
                step.jobs = [Job(step, index, self._number()) for index in range(step.parallelism)]

    def _number(self) -> int:
        self._jobs = getattr(self, "_jobs", 0) + 1
        return self._jobs

    # ---- the loop -------------------------------------------------------------------------------------------------------------------------------------
    def run(self, pipeline: dict[str, Any]) -> State:
        """The build's state: passed, failed, canceled, or blocked where only a person can go on and everything else passed."""
        self.add(interpolated(pipeline, self.options.environment))
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
        if any(step.state in DONE - GOOD for step in self.steps):
            return State.FAILED
        return State.PASSED

    def _advance(self) -> bool:
        """Bring every step as far as it comes, start what may start; whether anything runs."""
        changed = True
        while changed:
            changed = False
            for step in self.steps:
                if step.state in (State.WAITING, State.BLOCKED):
                    was = step.state
                    self._look(step)
                    changed |= step.state is not was and step.state in DONE
        self._start()
        return bool(self.running)

    def _look(self, step: Step) -> None:
        if step.kind == "group":
            self._close_group(step)
            return
        ready = self._ready(step)
        if ready is not State.PASSED:
            step.state = ready
        elif step.told.get("skip"):
            step.state = State.SKIPPED
        elif step.kind == "wait":
            step.state = State.PASSED
        elif step.kind == "block":
            self._unblock(step)
        else:
            step.state = State.WAITING
        if step.state in (State.BROKEN, State.SKIPPED):
            for job in step.jobs:
                job.state = step.state

    def _close_group(self, step: Step) -> None:
        inner = [other for other in self.steps if other.group is step]
        if all(other.state in DONE for other in inner):
            step.state = min((other.state for other in inner), key=WORST.index, default=State.PASSED)

    def _unblock(self, step: Step) -> None:
        fields = [str(item["key"]) for item in step.told.get("fields") or []]
        if (fields and all(name in self.options.release for name in fields)) or (step.key in self.options.release):
            for name in fields:
                self.store.set(name, self.options.release.get(name, ""))
            step.state = State.PASSED
        else:
            step.state = State.BLOCKED

    def _ready(self, step: Step) -> State:
        """PASSED: may go on. WAITING, BLOCKED, BROKEN: may not (yet)."""
        found = [self._dependency(other, anyway) for other, anyway in self._dependencies(step)]
        return next((state for state in (State.BROKEN, State.BLOCKED, State.WAITING) if state in found), State.PASSED)

    def _dependency(self, other: Step | None, anyway: bool) -> State:
        if other is None:
            return State.WAITING  # nobody has the key yet
        if other.state not in DONE:
            return State.BLOCKED if other.state is State.BLOCKED else State.WAITING
        return State.PASSED if anyway or other.state in GOOD else State.BROKEN

    def _dependencies(self, step: Step) -> list[tuple[Step | None, bool]]:
        """What it waits for: what it names, or else the wait or block before it; a wait or block without names waits for all before it."""
        named = step.explicit
        if named is not None:
            by_key = {other.key: other for other in self.steps if other.key}
            return [(by_key.get(key), anyway) for key, anyway in named]
        before = self.steps[: self.steps.index(step)]
        if step.kind in ("wait", "block"):
            return [(other, bool(step.told.get("continue_on_failure"))) for other in before if other.kind != "block" or other.told.get("depends_on") is None]
        return [(other, False) for other in reversed(before) if other.kind in ("wait", "block") and other.explicit is None][:1]

    # ---- jobs -----------------------------------------------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        waiting = [job for step in self.steps if step.kind == "command" and self._open(step) for job in step.jobs if job.state is State.WAITING]
        for job in sorted(waiting, key=lambda job: (-int(job.step.told.get("priority", 0)), job.number)):
            queue_ = str(_agents(job.step.told).get("queue", "default"))
            if queue_ not in self.options.queues:
                self._finish(job, -1, f"no agent here serves queue {queue_}", again=False)
            elif len(self.running) < self.options.agents and self._slot(job):
                self._launch(job)

    def _open(self, step: Step) -> bool:
        return step.state in (State.WAITING, State.RUNNING) and self._ready(step) is State.PASSED

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
        missing = [name for name in _secrets(job.step.told) if name not in self.options.environment]
        if missing or job.step.told.get("image"):
            why = f"secret {missing[0]} is not set here" if missing else f"wants the image {job.step.told['image']}: containers are not run here"
            self._finish(job, 1, why, again=False)
            return
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
            more.put(self._answer(what))

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

    # ---- what steps ask of buildkite-agent ---------------------------------------------------------------------------------------------------------------
    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        command, arguments, options = request["command"], request["arguments"], request["options"]
        try:
            return self._do(command, arguments, options, request)
        except (PipelineError, Refused, ValueError, OSError) as error:
            return {"exit": 1, "error": f"{command}: {error}"}
        except IndexError:
            return {"exit": 1, "error": f"{command}: an argument is missing"}

    def _do(self, command: str, arguments: list[str], options: dict[str, str], request: dict[str, Any]) -> dict[str, Any]:
        cwd, store = Path(request["cwd"]), self.store
        if command == "annotate":
            store.annotate(options.get("context", "default"), options.get("style", "default"), request["text"], "append" in options)
        elif command == "artifact upload":
            if not store.send(arguments[0], cwd):
                return {"exit": 1, "error": f"no file matches {arguments[0]}"}
        elif command == "artifact download":
            if not store.fetch(arguments[0], cwd / (arguments[1] if len(arguments) > 1 else ".")):
                return {"exit": 1, "error": f"no artifact matches {arguments[0]}"}
        elif command == "meta-data set":
            store.set(arguments[0], arguments[1])
        elif command in ("meta-data get", "meta-data exists"):
            return self._meta(command, arguments[0], options.get("default"))
        elif command == "meta-data keys":
            return {"out": "\n".join(store.meta)}
        elif command == "pipeline upload":
            self._upload(request)
        else:
            return self._step(arguments[0], options.get("step", ""))
        return {}

    def _meta(self, command: str, key: str, default: str | None) -> dict[str, Any]:
        found = self.store.meta.get(key, default)
        if found is None:
            return {"exit": 100, "error": "" if command.endswith("exists") else f"no meta-data {key}"}
        return {} if command.endswith("exists") else {"out": found}

    def _upload(self, request: dict[str, Any]) -> None:
        import yaml

        told = yaml.safe_load(request["text"])
        pipeline = told if "no-interpolation" in request["options"] else interpolated(told, request["environment"])
        job = next(job for job, _ in self.running.values() if str(job.number) == request["job"])
        self.add(pipeline, after=job.step)
        number = len(list(self.options.folder.glob("upload-*.json"))) + 1
        (self.options.folder / f"upload-{number:03d}.json").write_text(json.dumps(pipeline, indent=1) + "\n")

    def _step(self, attribute: str, key: str) -> dict[str, Any]:
        step = next((step for step in self.steps if step.key == key), None)
        if step is None:
            return {"exit": 1, "error": f"no step has the key {key}"}
        values = {"key": step.key or "", "label": str(step.told.get("label", "")), "state": "finished" if step.state in DONE else str(step.state)}
        values["outcome"] = str(step.state) if step.state in DONE else ""
        return {"out": values[attribute]} if attribute in values else {"exit": 1, "error": f"no attribute {attribute} here"}

    # ---- afterwards -----------------------------------------------------------------------------------------------------------------------------------
    def step(self, key: str) -> Step:
        return next(step for step in self.steps if step.key == key)

    def _record(self) -> None:
        jobs = [
            {"name": job.name, "key": job.step.key, "state": str(job.state), "attempts": [vars(attempt) for attempt in job.attempts]}
            for step in self.steps
            for job in step.jobs
        ]
        record = {"build": self.options.build, "state": str(self.state), "jobs": jobs, "started": self.started}
        (self.options.folder / "build.json").write_text(json.dumps(record, indent=1) + "\n")


def _inherited(told: dict[str, Any], pipeline: dict[str, Any]) -> dict[str, Any]:
    """A command step with what its pipeline says for all steps."""
    env = {**(pipeline.get("env") or {}), **(told.get("env") or {})}
    rest = {name: pipeline[name] for name in ("agents", "priority") if name in pipeline and name not in told}
    return {**told, **rest, **({"env": env} if env else {})}


def _agents(told: dict[str, Any]) -> dict[str, str]:
    agents = told.get("agents") or {}
    return dict(item.split("=", 1) for item in agents) if isinstance(agents, list) else agents


def _secrets(told: dict[str, Any]) -> Iterable[str]:
    return list((told.get("secrets") or {}).values()) if isinstance(told.get("secrets"), dict) else told.get("secrets") or []


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])
