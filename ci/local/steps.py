"""Steps of a pipeline as the local executor knows them. An attribute that it does not know is refused: a pipeline that runs here does what it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PIPELINE = {"steps", "env", "agents", "priority", "notify", "secrets"}
COMMON = {"key", "label", "depends_on", "allow_dependency_failure"}
KINDS: dict[str, set[str]] = {
    "command": COMMON
    | {
        *("command", "commands", "agents", "env", "timeout_in_minutes", "retry", "soft_fail", "artifact_paths", "parallelism", "concurrency"),
        *("concurrency_group", "concurrency_method", "priority", "notify", "secrets", "image", "skip"),
    },
    "wait": COMMON | {"wait", "continue_on_failure"},
    "block": COMMON | {"block", "prompt", "fields", "blocked_state"},
    "group": COMMON | {"group", "steps"},
}


class Refused(Exception):
    """A pipeline that this executor does not run; the message names the step and what it does not know."""


class State(StrEnum):
    WAITING = "waiting"  # for what it depends on, a slot or an agent
    BLOCKED = "blocked"  # for a person, or behind a step that is
    RUNNING = "running"
    PASSED = "passed"
    SOFT_FAILED = "soft_failed"
    FAILED = "hard_failed"
    TIMED_OUT = "timed_out"
    BROKEN = "broken"  # something it depends on failed, so it never ran
    SKIPPED = "skipped"
    CANCELED = "canceled"


DONE = frozenset(State) - {State.WAITING, State.BLOCKED, State.RUNNING}
GOOD = frozenset({State.PASSED, State.SOFT_FAILED, State.SKIPPED})
WORST = (State.CANCELED, State.TIMED_OUT, State.FAILED, State.BROKEN, State.SOFT_FAILED, State.PASSED, State.SKIPPED)


@dataclass
class Attempt:
    """One process of a job. `exit` is -1 where the shell itself was killed from outside: what Buildkite calls a lost agent."""

    number: int
    pid: int | None = None
    exit: int | None = None
    seconds: float = 0.0
    log: str = ""
    note: str = ""


@dataclass
class Job:
    """One of the jobs of a command step (`index` of `parallelism`)."""

    step: Step
    index: int
    number: int  # in order of creation; also the name of its folder
    state: State = State.WAITING
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def name(self) -> str:
        many = self.step.parallelism > 1
        return f"{self.step.name} [{self.index + 1}/{self.step.parallelism}]" if many else self.step.name


@dataclass(eq=False)
class Step:
    """A step of any kind. `group` is the step it stands in."""

    kind: str
    told: dict[str, Any]
    number: int
    group: Step | None = None
    state: State = State.WAITING
    jobs: list[Job] = field(default_factory=list)

    @property
    def key(self) -> str | None:
        return self.told.get("key")

    @property
    def name(self) -> str:
        return str(self.key or self.told.get("label") or self.told.get(self.kind) or f"{self.kind} {self.number}")

    @property
    def parallelism(self) -> int:
        return int(self.told.get("parallelism", 1))

    @property
    def commands(self) -> list[str]:
        found = self.told.get("command", self.told.get("commands", []))
        return [found] if isinstance(found, str) else list(found)

    @property
    def explicit(self) -> list[tuple[str, bool]] | None:
        """(key, whether it may fail) of `depends_on`, its group's included; None where neither has one."""
        own, outer = self.told.get("depends_on"), self.group.explicit if self.group else None
        if own is None:
            return outer
        anyway = bool(self.told.get("allow_dependency_failure"))
        items = [own] if isinstance(own, str) else own
        pairs = [(item, anyway) if isinstance(item, str) else (item["step"], bool(item.get("allow_failure")) or anyway) for item in items]
        return [*(outer or []), *pairs]

    def soft(self, exit_: int) -> bool:
        """Whether this exit code fails the step softly."""
        told = self.told.get("soft_fail", False)
        return told is True or (isinstance(told, list) and any(rule.get("exit_status") in ("*", exit_) for rule in told))

    def retries(self, exit_: int) -> int:
        """How often a job that ended so is retried by itself."""
        rules = (self.told.get("retry") or {}).get("automatic") or []
        if rules is True:
            rules = [{}]
        for rule in [rules] if isinstance(rules, dict) else rules:
            wanted = rule.get("exit_status", "*")
            if wanted == "*" or exit_ in (wanted if isinstance(wanted, list) else [wanted]):
                return int(rule.get("limit", 2))
        return 0


def read_steps(pipeline: dict[str, Any], first: int) -> Iterator[Step]:
    """The steps of an uploaded pipeline, numbered from `first`; a group is followed by what stands in it. Raises Refused for what is not known here."""
    unknown = sorted(pipeline.keys() - PIPELINE)
    if unknown:
        raise Refused(f"the pipeline has '{unknown[0]}', which the local executor does not know")
    number = first
    for told in pipeline["steps"]:
        step = _step(told, number)
        number += 1
        yield step
        for inner in told.get("steps", []) if step.kind == "group" else []:
            child = _step(inner, number, step)
            if child.kind == "group":
                raise Refused(f"group {child.name} stands in a group")
            number += 1
            yield child


def _step(told: Any, number: int, group: Step | None = None) -> Step:
    if told in ("wait", "waiter"):
        told = {"wait": None}
    if not isinstance(told, dict):
        raise Refused(f"step {number}: {told!r} is no step that the local executor knows")
    kind = next((kind for kind in ("group", "wait", "block") if kind in told), "command")
    unknown = sorted(told.keys() - KINDS[kind])
    step = Step(kind, told, number, group)
    if unknown:
        raise Refused(f"step {step.name} has '{unknown[0]}', which the local executor does not know: it would not do what the pipeline says")
    retry = told.get("retry") or {}
    for rule in retry.get("automatic") or [] if isinstance(retry.get("automatic"), list) else []:
        if set(rule) - {"exit_status", "limit"}:
            raise Refused(f"step {step.name}: retry by {', '.join(sorted(set(rule) - {'exit_status', 'limit'}))} is not known to the local executor")
    if kind == "command" and not told.get("skip") and not step.commands:
        raise Refused(f"step {step.name} has no command")
    return step
