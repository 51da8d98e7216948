"""A whole pipeline as plain data: `build` makes it of a selection, `finish` escapes, checks and splits it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ci.keys import UPLOADER, judge_key, run_key
from ci.selection import CellSteps, Selected
from ci.settings import Settings

if TYPE_CHECKING:
    from buildkite_sdk import CommandStep

Pipeline = dict[str, Any]


def build(selected: Selected, settings: Settings, checks: bool = True) -> Pipeline:
    """Every step of a build but those that only judging can ask for. `checks=False` leaves out lint and unit, where they ran elsewhere."""
    from ci.steps import block_step, check_step, nothing_step, release_step

    told = [check_step(check, settings) for check in settings.checks] if checks else []
    steps: list[Any] = list(told)
    wait = [check.key for check in told if check.key] if settings.tier(selected.tier).wait_for_checks else []
    steps += cell_steps(selected, settings, wait or [UPLOADER], also=[check.key for check in told if check.key])
    if not selected.cells:
        steps.append(nothing_step(selected, settings))
    if selected.offered:
        steps += [block_step(selected), release_step(selected, settings)]
    return as_data(steps)


def cell_steps(selected: Selected, settings: Settings, wait: Sequence[str], scope: str = "", also: Iterable[str] = ()) -> list[Any]:
    """Runs by hardware, longest first, a first look at each cell, and the step that waits for all looks. `also`: steps that report and gate wait for, too."""
    from ci.steps import collect_step, group, judge_step, run_step

    ordered = sorted(selected.cells, key=lambda cell: (cell.hardware, -cell.minutes, cell.key))
    runs: dict[str, list[CommandStep]] = {}
    for cell in ordered:
        runs.setdefault(cell.hardware, []).extend(run_step(cell, seed, selected, settings, wait) for seed in cell.seeds)
    looks = [judge_step(cell, 1, cell.seeds, selected, settings, scope) for cell in ordered]
    steps: list[Any] = [group(f"runs on {hardware}", made) for hardware, made in runs.items()]
    steps += [group("verdicts", looks)] if looks else []
    waits = [*also, *(judge_key(cell.key, 1) for cell in ordered)]
    return [*steps, collect_step(1, waits or [UPLOADER], selected, settings, scope)]


def next_look(cell: CellSteps, look: int, selected: Selected, settings: Settings, scope: str = "") -> Pipeline:
    """One more seed of a cell and the look (from 2) after it."""
    from ci.steps import judge_step, run_step

    seeds = seeds_of(cell, look)
    run = run_step(cell, seeds[-1], selected, settings, [run_key(cell.key, seeds[-2])])
    return as_data([run, judge_step(cell, look, seeds, selected, settings, scope)])


def seeds_of(cell: CellSteps, look: int) -> list[int]:
    """The seeds that the `look`-th look (from 1) has."""
    return [*cell.seeds, *cell.more[: look - 1]]


def as_data(steps: Iterable[Any]) -> Pipeline:
    """buildkite-sdk's objects as the mapping that is uploaded."""
    from buildkite_sdk import Pipeline as SdkPipeline

    pipeline = SdkPipeline()
    for step in steps:
        pipeline.add_step(step)
    return pipeline.to_dict()


def escaped(value: Any) -> Any:
    """The pipeline with each `$` doubled: an upload replaces variables in every text of it, and so the bytes arrive as they were."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list) else value


def finish(pipeline: Pipeline, settings: Settings, known: Iterable[str] = ()) -> list[Pipeline]:
    """What is uploaded, in order: checked, escaped, and in parts of at most `upload_limit` jobs. `known`: keys of steps that the build has already.

    Raises PipelineError, which names the step, for anything that Buildkite or our own rules refuse.
    """
    from ci.validate import check

    check(pipeline, {UPLOADER, *known})
    return [escaped(part) for part in split(pipeline, settings.upload_limit)]


def jobs_of(step: Any) -> int:
    """How many jobs Buildkite counts for a step: a group is one, with each step in it; parallelism multiplies."""
    if isinstance(step, dict) and "group" in step:
        return 1 + sum(jobs_of(inner) for inner in step["steps"])
    return int(step.get("parallelism", 1)) if isinstance(step, dict) else 1


def split(pipeline: Pipeline, limit: int) -> list[Pipeline]:
    """Parts of at most `limit` jobs; a group that does not fit goes on in the next part under the same name. The order is kept, so what a step depends on
    is in its own part or in an earlier one. Raises PipelineError for a step that alone has more jobs."""
    from ci.validate import PipelineError

    parts: list[list[Any]] = [[]]
    room = limit
    for step in pipeline["steps"]:
        inner = step["steps"] if "group" in step else None
        pieces = [step] if inner is None else inner
        opened: dict[str, Any] | None = None
        for piece in pieces:
            count = jobs_of(piece)
            if count + (inner is not None) > limit:
                raise PipelineError(f"step {piece.get('key')} has {count} jobs; {limit} is the limit of an upload")
            if room < count + (inner is not None and opened is None):
                parts.append([])
                room, opened = limit, None
            if inner is None:
                parts[-1].append(piece)
            else:
                if opened is None:
                    opened = {**step, "steps": []}
                    parts[-1].append(opened)
                    room -= 1
                opened["steps"].append(piece)
            room -= count
    rest = {name: value for name, value in pipeline.items() if name != "steps"}
    return [{**rest, "steps": part} for part in parts]


def keys_of(pipeline: Pipeline) -> list[str]:
    """Keys of all steps, those inside groups too, in order."""
    return [str(step["key"]) for step in flat(pipeline) if step.get("key")]


def flat(pipeline: Pipeline) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for step in pipeline["steps"]:
        steps += [step, *step["steps"]] if isinstance(step, dict) and "group" in step else [step if isinstance(step, dict) else {step: None}]
    return steps
