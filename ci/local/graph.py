"""The steps of a build and what each waits for. Knows nothing of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ci.local.steps import DONE, GOOD, WORST, Job, State, Step, read_steps
from ci.pipeline import jobs_of
from ci.validate import PipelineError, check


class Graph:
    """Steps in the order of the pipeline: what a step uploads follows that step."""

    def __init__(self, upload_limit: int, released: Callable[[Step, list[str]], bool]):
        self.upload_limit = upload_limit
        self.released = released  # whether a person released a block step with these fields
        self.steps: list[Step] = []
        self.by_key: dict[str, Step] = {}
        self.jobs = 0

    def add(self, pipeline: dict[str, Any], after: Step | None = None) -> None:
        """Raises PipelineError or Refused and leaves the build as it was."""
        check(pipeline, None)
        count = sum(jobs_of(step) for step in pipeline["steps"])
        if count > self.upload_limit:
            raise PipelineError(f"{count} jobs in one upload; {self.upload_limit} is the limit")
        new = list(read_steps(pipeline, len(self.steps)))
        doubled = [step.key for step in new if step.key in self.by_key]
        if doubled:
            raise PipelineError(f"the build has a step with the key {doubled[0]} already")
        for step in new:
            step.told = _inherited(step.told, pipeline) if step.kind == "command" else step.told
        at = self.steps.index(after) + 1 if after else len(self.steps)
        while after and at < len(self.steps) and after.group is not None and self.steps[at].group is after.group:
            at += 1
        self.steps[at:at] = new
        self.by_key |= {step.key: step for step in new if step.key}
        for step in new:
            if step.kind == "command":
                step.jobs = [Job(step, index, self.jobs + index + 1) for index in range(step.parallelism)]
                self.jobs += step.parallelism

    def advance(self) -> None:
        """Bring every step as far as it comes by itself."""
        changed = True
        while changed:
            changed = False
            for step in self.steps:
                if step.state in (State.WAITING, State.BLOCKED):
                    was = step.state
                    self._look(step)
                    changed |= step.state is not was

    def _look(self, step: Step) -> None:
        if step.kind == "group":
            self._close_group(step)
            return
        ready = self.ready(step)
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
        step.state = State.PASSED if self.released(step, fields) else State.BLOCKED

    def ready(self, step: Step) -> State:
        """PASSED: may go on. WAITING, BLOCKED, BROKEN: may not (yet)."""
        found = [self._dependency(other, anyway) for other, anyway in self._dependencies(step)]
        return next((state for state in (State.BROKEN, State.BLOCKED, State.WAITING) if state in found), State.PASSED)

    def _dependency(self, other: Step | None, anyway: bool) -> State:
        if other is None:
            return State.WAITING  # nobody has the key yet
        if other.state not in DONE:
            return State.BLOCKED if other.state is State.BLOCKED else State.WAITING
        return State.PASSED if anyway or other.state in GOOD else State.BROKEN

    def _dependencies(self, step: Step) -> Sequence[tuple[Step | None, bool]]:
        """What it waits for: what it names, or else the wait or block before it; a wait or block without names waits for all before it."""
        named = step.explicit
        if named is not None:
            return [(self.by_key.get(key), anyway) for key, anyway in named]
        before = self.steps[: self.steps.index(step)]
        if step.kind in ("wait", "block"):
            anyway = bool(step.told.get("continue_on_failure"))
            return [(other, anyway) for other in before if other.kind != "block" or other.told.get("depends_on") is None]
        return [(other, False) for other in reversed(before) if other.kind in ("wait", "block") and other.explicit is None][:1]

    def find(self, key: str) -> Step | None:
        return self.by_key.get(key)

    @property
    def failed(self) -> bool:
        return any(step.state in DONE - GOOD for step in self.steps)


def _inherited(told: dict[str, Any], pipeline: dict[str, Any]) -> dict[str, Any]:
    """A command step with what its pipeline says for all steps."""
    env = {**(pipeline.get("env") or {}), **(told.get("env") or {})}
    rest: dict[str, Any] = {name: pipeline[name] for name in ("agents", "priority") if name in pipeline and name not in told}
    return {**told, **rest, **({"env": env} if env else {})}
