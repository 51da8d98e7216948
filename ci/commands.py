"""What the commands of `python -m ci` do. Kept apart from the command line, which starts without them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci import buildkite
from ci.pipeline import build, cell_steps, finish
from ci.selection import Request, Selected, choose, read_selection
from ci.settings import Settings, read_settings

if TYPE_CHECKING:
    from ci.gate import Gate
    from ci.pipeline import Pipeline


def load_tree(root: Path | None, *, ended: bool = False) -> Any:
    """The matrix. `ended`: also with a quarantine that has expired, for those who only read results."""
    from matrix.loader import load

    return load(root, today=date.min) if ended else load(root)


def make_pipeline(request: Request, checks: bool, out: Path | None, upload: bool, settings_file: Path | None, root: Path | None, built: bool = False) -> None:
    settings = read_settings(settings_file)
    if built:
        request = replace(request, images={**request.images, **buildkite.images()})
    files = {"settings": str(settings_file) if settings_file else None, "matrix": str(root) if root else None}
    selected = choose(load_tree(root), request, settings).model_copy(update=files)
    made = build(selected, settings, checks)
    if upload:
        selected.write(Path(selected.file()))
        buildkite.send(selected.file())
        buildkite.annotate(told(selected), "info", "selection")
        buildkite.upload(made, settings)
        return
    parts = finish(made, settings)
    if out is None:
        print(as_yaml(parts))
        return
    selected.write(out / "selection.json")
    for number, part in enumerate(parts, 1):
        (out / f"pipeline-{number}.json").write_text(json.dumps(part, indent=1) + "\n", encoding="utf-8")


def make_images(names: tuple[str, ...], tier: str | None, registry: str | None, upload: bool, settings_file: Path | None, root: Path | None) -> None:
    from ci.images import images_pipeline

    settings = read_settings(settings_file)
    made = images_pipeline(load_tree(root), names, tier, registry, settings)
    if upload:
        buildkite.upload(made, settings)
    else:
        print(as_yaml(finish(made, settings)))


def as_yaml(parts: list[Pipeline]) -> str:
    import yaml

    return "---\n".join(yaml.safe_dump(part, sort_keys=False, allow_unicode=True, width=160) for part in parts)


def told(selected: Selected) -> str:
    """The selection as Markdown: what runs, what cannot, and why."""
    from reports.site.annotation import escape

    lines = [f"**{len(selected.cells)} cells** of {f'tier {selected.tier}' if selected.tier else 'those named'}, {selected.hours:.2f} device-hours", ""]
    lines += [f"- `{cell.cell}`" + (f": {escape(cell.because[0])}" if cell.because else "") for cell in selected.cells]
    lines += [f"- {escape(reason)}" for reason in selected.nothing]
    if selected.excluded:
        lines += ["", f"{len(selected.excluded)} cells cannot run in CI:", ""]
        lines += [f"- `{entry.cell}`: {escape(entry.reason)}" for entry in selected.excluded]
    return "\n".join(lines) + "\n"


def judge_cell(cell: str, look: int, file: Path, settings_file: Path | None) -> int:
    from ci.adaptive import judge

    selected = read_selection(file)
    return judge(selected.named(cell), look, selected, read_settings(settings_file), scope_of(file)).exit_code


def collect_round(round_: int, file: Path, settings_file: Path | None) -> None:
    from ci.adaptive import collect

    waiting = collect(round_, read_selection(file), read_settings(settings_file), scope_of(file))
    print(f"waiting for {', '.join(waiting)}" if waiting else "every cell has its last look: report and gate follow")


def scope_of(file: Path) -> str:
    return file.stem.removeprefix("selection").removeprefix("-")


def release_cells(file: Path, settings_file: Path | None) -> None:
    from ci.keys import UPLOADER
    from ci.pipeline import as_data
    from ci.steps import BLOCK, RELEASED

    selected, settings = read_selection(file), read_settings(settings_file)
    wanted = (buildkite.get_meta(BLOCK) or "").split()
    cells = [cell for cell in selected.offered if cell.key in wanted]
    print(f"released: {', '.join(cell.cell for cell in cells) or 'none was ticked'}")
    if not cells:
        return
    mine = selected.model_copy(update={"cells": cells, "offered": [], "excluded": [], "nothing": [], "tier": None, "budget": None})
    mine.write(Path(mine.file(RELEASED)))
    buildkite.send(mine.file(RELEASED))
    buildkite.upload(as_data(cell_steps(mine, settings, [UPLOADER], RELEASED)), settings)


def fetch_results(results: Path) -> None:
    if not buildkite.fetch(f"{results}/**/*"):
        print(f"no artifact of {results}: no run of this build left anything")
    results.mkdir(parents=True, exist_ok=True)


def decide_gate(
    results: Path,
    policy_file: Path | None,
    tier: str | None,
    selection: Path | None,
    out: Path,
    in_build: bool,
    summary: Path | None,
    settings_file: Path | None,
    root: Path | None,
) -> int:
    from ci.adaptive import held_back
    from ci.annotation import markdown
    from ci.gate import decide
    from ci.hosts import LOST, lost_runs
    from ci.policy import read_policy

    matrix, settings = load_tree(root, ended=True), read_settings(settings_file)
    policy = read_policy(policy_file, matrix.tiers)
    selected = read_selection(selection) if selection else None
    checks: dict[str, str] = {}
    held: dict[str, str] = {}
    noted: list[str] = []
    if in_build:
        fetch_results(results)
        checks = {check.key: found for check in settings.checks if (found := buildkite.outcome(check.key)) is not None}
        held = held_back(selected) if selected else {}
        noted = [buildkite.get_meta(key) or "" for key in buildkite.meta_keys(LOST)]
    decided = decide(results, matrix, policy, selected, tier, checks, held, lost_runs(results, noted))
    text = markdown(decided, results, root, report=selected.report if selected and in_build else None)
    out.mkdir(parents=True, exist_ok=True)
    (out / "annotation.md").write_text(text, encoding="utf-8")
    (out / "status.txt").write_text(decided.status + "\n", encoding="utf-8")
    (out / "gate.json").write_text(json.dumps(decided.as_data(), indent=1) + "\n", encoding="utf-8")
    if summary is not None:
        with summary.open("a", encoding="utf-8") as stream:
            stream.write(text + "\n")
    if in_build:
        buildkite.annotate(text, decided.style, out.name)
        buildkite.set_meta(f"vime:status:{out.name}", decided.status)
        _set_status(settings, out.name, decided)
    print("\n".join([*decided.lines(), decided.status]))
    return decided.exit_code


def _set_status(settings: Settings, gate: str, decided: Gate) -> None:
    """A status that cannot be set is said loudly and changes no decision: the build's own state stands beside it."""
    from ci.status import StatusError, post

    status = settings.status
    if not status.url or not status.secret:
        return
    context = status.context if gate == "gate" else f"{status.context}:{gate.removeprefix('gate-')}"
    try:
        url = status.url.format(commit=os.environ.get("BUILDKITE_COMMIT", ""))
        post(url, os.environ[status.secret], context, decided.exit_code, decided.status, os.environ.get("BUILDKITE_BUILD_URL"))
    except KeyError:
        print(f"the commit status was not set: the secret {status.secret} is not there", file=sys.stderr)
    except StatusError as error:
        print(f"the commit status was not set: {error}", file=sys.stderr)


def run_here(request: Request, checks: bool, release: list[str], agents: int, folder: Path, settings_file: Path | None, root: Path | None) -> int:
    import shlex

    from ci.keys import UPLOADER
    from ci.local.executor import Build, Options
    from ci.steps import BLOCK

    settings = read_settings(settings_file)
    selected = choose(load_tree(root), request, settings)
    name = f"local-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')[:-3]}"
    words = [sys.executable, "-m", "ci", "pipeline", "--upload"]
    words += [*(["--tier", request.tier] if request.tier else []), *(part for cell in request.cells for part in ("--cell", cell))]
    words += [*(part for hardware in request.hardware for part in ("--hardware", hardware)), *([] if checks else ["--no-checks"])]
    words += ["--changed-since", request.changed_since] if request.changed_since else []
    words += [part for flag, value in (("--settings", settings_file), ("--matrix", root)) if value for part in (flag, str(value.resolve()))]
    ticked = {cell.cell: cell.key for cell in selected.offered}
    options = Options(
        folder=(folder / name).resolve(),
        checkout=Path.cwd(),
        build=name,
        agents=agents,
        queues=tuple({settings.queue, "default", *(cell.queue for cell in selected.cells if cell.platform == "cpu")}),
        release={BLOCK: "\n".join(ticked.get(cell, cell) for cell in release)} if release else {},
    )
    made = Build(options)
    state = made.run({"steps": [{"key": UPLOADER, "label": "upload the pipeline", "command": shlex.join(words), "agents": {"queue": settings.queue}}]})
    return finished(made, state)


def finished(made: Any, state: Any) -> int:
    """The exit code of a local build: the most severe of its gates', else whether it passed."""
    from ci.local.summary import lines

    print("\n".join(lines(made)))
    from ci.local.steps import State

    if state is State.CANCELED:
        return 130
    gates = [step for step in made.steps if step.key and step.key.split(":")[0] == "gate" and step.jobs]
    codes = [job.attempts[-1].exit or 0 for step in gates for job in step.jobs if job.attempts]
    return next((code for code in codes if code), 0 if state is State.PASSED else 1)
