"""Buildkite steps as buildkite-sdk's typed objects: one file of small builders, each given what it shows and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from buildkite_sdk import BlockStep, CommandStep, GroupStep

from ci.keys import UPLOADER, collect_key, judge_key, run_key, scoped
from ci.selection import CellSteps, Selected
from ci.settings import Check, Settings
from matrix.outcome import EXIT_CODES, Outcome

AGENT_LOST = -1
RELEASED = "released"  # scope of the cells that a person released
BLOCK = "more-cells"  # key of the block step, and the meta-data key of its field
PASS_ON = {"allow_failure": True}


def outcome_codes() -> list[dict[str, int]]:
    """What does not fail a build by itself: every outcome that is no PASS, and an agent that stays lost. The gate decides over all of them."""
    codes = sorted(code for code in EXIT_CODES.values() if code)
    return [{"exit_status": code} for code in (AGENT_LOST, *codes)]


def retries(settings: Settings, *codes: int, why: str | None = None) -> dict[str, Any]:
    """Automatic retry of these exit codes alone. `why`: the reason for which nobody retries by hand either."""
    manual: dict[str, Any] = {"manual": {"allowed": False, "reason": why}} if why else {"manual": {"permit_on_passed": False}}
    return {"automatic": [{"exit_status": code, "limit": settings.retries} for code in codes], **manual}


def check_step(check: Check, settings: Settings) -> CommandStep:
    return CommandStep(
        key=check.key,
        label=check.label,
        command=check.commands,
        agents={"queue": settings.queue},
        depends_on=[UPLOADER],
        timeout_in_minutes=check.minutes,
        retry=retries(settings, AGENT_LOST),
    )


def run_step(cell: CellSteps, seed: int, selected: Selected, settings: Settings, depends_on: Sequence[str] = (UPLOADER,)) -> CommandStep:
    """One run of one cell. Its artifacts are the run directory without checkpoints."""
    platform = settings.platforms[cell.platform]  # type: ignore[index]
    command = settings.commands.cell.format(python=platform.python, cell=cell.cell, seed=seed, results=selected.results)
    folder = f"{selected.results}/{cell.key}/seed-{seed}"
    optional: dict[str, Any] = {"image": cell.image} if cell.image else {}
    return CommandStep(
        key=run_key(cell.key, seed),
        label=f"{cell.cell} · seed {seed}",
        command=[*platform.prepare, command],
        agents={"queue": cell.queue, "devices": str(cell.devices)},
        env=devices(cell) | ({"VIME_IMAGE": cell.image} if cell.image else {}),
        depends_on=list(depends_on),
        timeout_in_minutes=cell.minutes,
        priority=settings.tier(selected.tier).priority,
        concurrency_group=f"vime/{cell.queue}/{cell.devices}",
        concurrency=cell.pool,
        concurrency_method="eager",
        retry=retries(settings, AGENT_LOST, Outcome.INFRA.exit_code),
        soft_fail=outcome_codes(),
        artifact_paths=[f"{folder}/*", f"{folder}/samples/**/*"],
        **optional,
    )


def devices(cell: CellSteps) -> dict[str, str]:
    """The class that the step asks for, and the devices it may use, counted within what its agent has: exactly as many as the class."""
    said = {"VIME_DEVICES": str(cell.devices)}
    return said | ({cell.visible: ",".join(str(index) for index in range(cell.devices))} if cell.visible else {})


def judge_step(cell: CellSteps, look: int, seeds: Iterable[int], selected: Selected, settings: Settings, scope: str = "") -> CommandStep:
    """A look at the cell's runs, whatever became of them; looks of a build are taken one after the other, so that none overdraws the tier's budget."""
    return CommandStep(
        key=judge_key(cell.key, look),
        label=f"{cell.cell} · verdict, look {look}",
        command=harness(selected, settings, f"judge {cell.key} --look {look}", scope),
        agents={"queue": settings.queue},
        depends_on=[{"step": run_key(cell.key, seed), **PASS_ON} for seed in seeds],
        timeout_in_minutes=settings.margin_minutes + 15,
        priority=settings.tier(selected.tier).priority + 1,
        concurrency_group=f"vime/judge/{selected.build}",
        concurrency=1,
        concurrency_method="eager",
        retry=retries(settings, AGENT_LOST, why="a verdict is never retried: it would be the same, or it would be another one"),
        soft_fail=outcome_codes(),
        artifact_paths=[f"{selected.results}/{cell.key}/verdicts/*.json"],
    )


def collect_step(round_: int, depends_on: Iterable[str], selected: Selected, settings: Settings, scope: str = "") -> CommandStep:
    """Waits for the looks of a round. A step that is there from the start does not wait for steps uploaded later, so this one uploads what comes next."""
    return CommandStep(
        key=collect_key(scope, round_),
        label="all looked at?" if round_ == 1 else f"all looked at? ({round_})",
        command=harness(selected, settings, f"collect --round {round_}", scope),
        agents={"queue": settings.queue},
        depends_on=[{"step": key, **PASS_ON} for key in depends_on],
        timeout_in_minutes=settings.margin_minutes,
        priority=settings.tier(selected.tier).priority + 1,
        retry=retries(settings, AGENT_LOST),
    )


def closing_steps(depends_on: Iterable[str], selected: Selected, settings: Settings, scope: str = "") -> list[CommandStep]:
    """The report, which always runs, and the gate, which alone decides."""
    report, gate = scoped("report", scope), scoped("gate", scope)
    waits = [{"step": key, **PASS_ON} for key in depends_on]
    shared: dict[str, Any] = {
        "agents": {"queue": settings.queue},
        "priority": settings.tier(selected.tier).priority + 1,
        "retry": retries(settings, AGENT_LOST),
    }
    platform = settings.platforms["cpu"]
    made = settings.commands.report.format(python=platform.python, results=selected.results, report=selected.report)
    tree = f" --matrix {shlex.quote(selected.matrix)}" if selected.matrix else ""
    folder = f"{selected.results}/{scoped('gate', scope).replace(':', '-')}"
    gate_command = f"gate {selected.results} --policy {shlex.quote(settings.policy)} --buildkite -o {folder}{tree}"
    secrets: dict[str, Any] = {"secrets": [settings.status.secret]} if settings.status.secret else {}
    return [
        CommandStep(
            key=report,
            label="report",
            command=[*platform.prepare, f"{platform.python} -m ci fetch {shlex.quote(selected.results)}", made],
            depends_on=[*waits, UPLOADER],
            timeout_in_minutes=60,
            soft_fail=True,
            artifact_paths=[f"{selected.report}/**/*"],
            **shared,
        ),
        CommandStep(
            key=gate,
            label="gate",
            command=harness(selected, settings, gate_command, scope),
            depends_on=[{"step": report, **PASS_ON}, *waits],
            timeout_in_minutes=settings.margin_minutes + 15,
            notify=[{"github_commit_status": {"context": scoped(settings.status.context, scope)}}],
            artifact_paths=[f"{folder}/*"],
            **secrets,
            **shared,
        ),
    ]


def nothing_step(selected: Selected, settings: Settings) -> CommandStep:
    """Says in the build why no cell runs."""
    reasons = [*selected.nothing, *(f"{cell.cell} cannot run: {cell.reason}" for cell in selected.excluded)]
    return CommandStep(
        key="no-cells",
        label="no cell runs, and why",
        command=[f"echo {shlex.quote(reason)}" for reason in reasons],
        agents={"queue": settings.queue},
        depends_on=[UPLOADER],
        timeout_in_minutes=5,
        retry=retries(settings, AGENT_LOST),
    )


def block_step(selected: Selected) -> BlockStep:
    """Cells that were not selected; a person releases those they tick. The build does not wait for it."""
    options = [{"label": f"{cell.cell} ({cell.hours:g} device-hours)", "value": cell.key} for cell in selected.offered]
    field = {"select": "Cells", "key": BLOCK, "hint": "They run, are judged and pass a gate of their own.", "multiple": True, "required": False}
    return BlockStep(
        block="Run more cells",
        key=BLOCK,
        prompt=f"{len(options)} cells were not selected.",
        fields=[{**field, "options": options}],
        blocked_state="passed",
        depends_on=[UPLOADER],
    )


def release_step(selected: Selected, settings: Settings) -> CommandStep:
    """Uploads the steps of the cells that a person ticked."""
    return CommandStep(
        key="release",
        label="release the cells ticked",
        command=harness(selected, settings, "release"),
        agents={"queue": settings.queue},
        depends_on=[BLOCK],
        timeout_in_minutes=settings.margin_minutes,
        retry=retries(settings, AGENT_LOST),
    )


def group(name: str, steps: list[CommandStep]) -> GroupStep:
    return GroupStep(group=name, steps=list(steps))


def harness(selected: Selected, settings: Settings, arguments: str, scope: str = "") -> list[str]:
    """The commands of a step that runs `python -m ci …` after it has fetched the build's selection."""
    platform = settings.platforms["cpu"]
    file = selected.file(scope)
    wanted = f" --selection {file}" + (f" --settings {shlex.quote(selected.settings)}" if selected.settings else "")
    return [*platform.prepare, f"buildkite-agent artifact download {file} .", f"{platform.python} -m ci {arguments}{wanted}"]
