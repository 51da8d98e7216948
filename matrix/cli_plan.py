"""The commands that look at many cells at once: `plan`, `affected`, `schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from matrix.problem import SelectionError

if TYPE_CHECKING:
    from matrix.affected import Affected
    from matrix.loader import DeclaredCell, Matrix

Root = Annotated[Path | None, typer.Option("--root", help="Another declaration tree than this checkout's matrix/.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Tier = Annotated[str | None, typer.Option(help="Only cells of this tier, held to its budget.", show_default=False)]
HardwareName = Annotated[str | None, typer.Option("--hardware", help="Only cells on this hardware, e.g. a3.", show_default=False)]
Since = Annotated[
    str | None,
    typer.Option("--changed-since", metavar="REV", help="Only cells that the changes since this git revision can break, with the reasons.", show_default=False),
]


def plan(
    cells: Annotated[list[str] | None, typer.Argument(help="Cells by id; default: all.", show_default=False)] = None,
    tier: Tier = None,
    hardware: HardwareName = None,
    changed_since: Since = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Memory, time and everything that is said of each cell.")] = False,
    as_json: Json = False,
    root: Root = None,
) -> None:
    """Plan cells without running them: devices, layout, memory per device, time, and the tier's budget.

    python -m matrix plan --tier nightly --hardware a3

    Exit codes: 0 planned, 1 a cell cannot run as declared (each fault with file, line and the mend) or the tier's budget is exceeded, 2 nothing is selected.
    A change that selects no cell says why none applies and exits 0.
    """
    from matrix.loader import load
    from matrix.plan import Planner
    from matrix.plan_text import as_data, as_json_lines, lines

    matrix = load(root)
    chosen = matrix.select(tier=tier, hardware=hardware)
    if not chosen:
        raise SelectionError("no cell matches: 'python -m matrix list' shows them all")
    if cells:
        wanted = {str(matrix.cell(cell)) for cell in cells}
        chosen = [cell for cell in chosen if str(cell) in wanted]
    found = _affected(matrix, changed_since) if changed_since else None
    if found is not None:
        chosen = [cell for cell in chosen if str(cell) in found.reasons]
    if not chosen:
        assert found is not None
        _nothing(found, as_json)
        return
    planned = Planner(matrix).plan(chosen, tier)
    if as_json:
        reasons = {} if found is None else {"reasons": {str(cell): list(found.reasons[str(cell)]) for cell in chosen}, "none": found.none}
        typer.echo(as_json_lines(as_data(planned) | reasons))
    else:
        typer.echo("\n".join([*lines(planned, verbose), *_why(found, chosen)]))
    if planned.faults or planned.budget:
        raise typer.Exit(1)


def _nothing(found: Affected, as_json: bool) -> None:
    """A change that selects no cell says why none applies."""
    if as_json:
        typer.echo(json.dumps({"cells": [], "none": found.none, "reasons": {}}, indent=1))
        return
    elsewhere = [f"{len(found.reasons)} cells are affected, none of them in this tier or on this hardware"] if found.reasons else []
    typer.echo(
        "\n".join([*elsewhere, *(f"{path} selects none: {why}" for path, why in sorted(found.none.items()))] or ["nothing changed: no cell is selected"])
    )


def _why(found: Affected | None, chosen: list[DeclaredCell]) -> list[str]:
    if found is None:
        return []
    out = ["", "selected by change:"]
    for cell in chosen:
        reasons = found.reasons[str(cell)]
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        out.append(f"  {cell}: {reasons[0]}{more}")
    return [*out, *(f"  {path} selects none: {why}" for path, why in sorted(found.none.items()))]


def _affected(matrix: Matrix, revision: str) -> Affected:
    from matrix.affected import affected, changed_paths

    return affected(matrix, changed_paths(matrix.root.parent, revision))


def affected_cells(
    revision: Annotated[str | None, typer.Argument(help="A git revision: what changed since HEAD left it. Default: take --path.", show_default=False)] = None,
    path: Annotated[list[str] | None, typer.Option(help="A changed path, relative to the checkout. May be repeated.", show_default=False)] = None,
    as_json: Json = False,
    root: Root = None,
) -> None:
    """Say which cells a change can break, and why: python -m matrix affected origin/main"""
    from matrix.affected import affected, changed_paths
    from matrix.loader import load

    matrix = load(root)
    if (revision is None) == (not path):
        raise SelectionError("name a git revision, or --path, one of the two")
    found = affected(matrix, path or changed_paths(matrix.root.parent, str(revision)))
    if as_json:
        typer.echo(json.dumps({"reasons": found.reasons, "none": found.none, "unknown": found.unknown}, indent=1))
    else:
        typer.echo("\n".join(found.lines()))


def schema(
    out: Annotated[Path, typer.Argument(help="A folder to write <kind>.schema.json to.", show_default=False)],
) -> None:
    """Write JSON Schemas of the declaration files, for editors: python -m matrix schema .vscode/matrix"""
    from matrix.editor_schema import write_schemas

    for file in write_schemas(out):
        typer.echo(str(file))


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("plan")(plan)
    app.command("affected")(affected_cells)
    app.command("schema")(schema)
