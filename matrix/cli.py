"""`python -m matrix`: list what must hold, show one cell resolved, check the declarations, say how a results root stands."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from matrix.cli_plan import register
from matrix.problem import MatrixError, SelectionError

if TYPE_CHECKING:
    from matrix.loader import DeclaredCell, Matrix

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""The matrix: every model × hardware × mode that must hold, declared in YAML under matrix/.

    A cell is called <model>.<hardware>.<mode>[@<variant>], e.g. qwen3-4b.cpu.colocate. Exit codes: 0 fine, 1 the declarations are at fault
    (every fault is listed with file and line), 2 the question is (an unknown cell, tier or hardware).""",
)
Root = Annotated[Path | None, typer.Option("--root", help="Another declaration tree than this checkout's matrix/.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command("list")
def list_cells(
    tier: Annotated[str | None, typer.Option(help="Only cells of this tier (smoke, pr, nightly, weekly, release).", show_default=False)] = None,
    hardware: Annotated[str | None, typer.Option(help="Only cells on this hardware, e.g. cpu.", show_default=False)] = None,
    as_json: Json = False,
    root: Root = None,
) -> None:
    """List the declared cells with recipe, tiers and disposition.

    python -m matrix list --tier smoke
    """
    matrix = _load(root)
    rows = [_row(cell) for cell in matrix.select(tier=tier, hardware=hardware)]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        raise SelectionError("no cell matches: 'python -m matrix list' shows them all")
    widths = [max(len(row[name]) for row in rows) for name in ("cell", "recipe", "tiers")]
    for row in rows:
        typer.echo(f"{row['cell']:<{widths[0]}}  {row['recipe']:<{widths[1]}}  {row['tiers']:<{widths[2]}}  {row['disposition']}")


def _row(cell: DeclaredCell) -> dict[str, str]:
    return {
        "cell": str(cell.id),
        "key": cell.key,
        "recipe": cell.recipe.value.name,
        "tiers": ",".join(cell.tiers),
        "disposition": str(cell.disposition),
        "evidence": cell.recipe.value.judge.evidence,
        "marker": cell.marker,
    }


@app.command()
def show(
    cell: Annotated[str, typer.Argument(help="A cell id, as `list` prints it.")],
    seed: Annotated[int, typer.Option(help="The run's seed: 0 to 99 for baselines, 100 and up for candidates.", min=0)] = 100,
    science: Annotated[bool, typer.Option("--science", help="Print what the science hash is taken of instead of the configuration.")] = False,
    diff: Annotated[str | None, typer.Option("--diff", metavar="CELL2", help="Print in what CELL2 differs; exit 1 if it is more than one axis.")] = None,
    as_json: Json = False,
    root: Root = None,
) -> None:
    """Print the configuration that `vime train` gets for one run of a cell, its science hash, and the commands to run it by hand on its hardware.

    The output is a configuration file: python -m matrix show qwen3-4b.cpu.colocate > run.yaml && vime train run.yaml
    """
    matrix = _load(root)
    if diff is not None:
        _show_difference(matrix, cell, diff, as_json)
    elif science:
        from matrix.resolver import science as science_of

        typer.echo(json.dumps(science_of(matrix, matrix.cell(cell)), indent=1, sort_keys=True))
    else:
        _show(matrix, matrix.cell(cell), seed, as_json)


def _show(matrix: Matrix, cell: DeclaredCell, seed: int, as_json: bool) -> None:
    from matrix.checks import cell_problems
    from matrix.launch import launch
    from matrix.resolver import resolve, science_hash

    config = resolve(cell, seed, matrix)
    problems = cell_problems(matrix, cell)
    if problems:
        raise MatrixError(problems)
    hashed, how = science_hash(cell, matrix), launch(matrix, cell, seed)
    if as_json:
        told = {"cell": str(cell), "key": cell.key, "science_hash": hashed, "launch": asdict(how), "commands": how.lines(), "config": config}
        typer.echo(json.dumps(told, indent=1))
        return
    typer.echo(f"# {cell}, seed {seed}: {cell.recipe.value.title}")
    typer.echo(f"# science hash {hashed}")
    typer.echo("# By hand, from the root of the checkout:\n" + "\n".join(f"#   {line}" for line in how.lines()))
    typer.echo(_yaml(config), nl=False)


def _show_difference(matrix: Matrix, first: str, second: str, as_json: bool) -> None:
    from matrix.difference import difference

    found = difference(matrix, matrix.cell(first), matrix.cell(second))
    typer.echo(json.dumps(asdict(found), indent=1, default=str) if as_json else "\n".join(found.lines()))
    if not found.single:
        raise typer.Exit(1)


@app.command()
def check(root: Root = None) -> None:
    """Check every declaration; each fault is one line with its file and line, value and mend.

    Beyond the files themselves: every cell composes to a configuration that vime's schema and the option catalogues accept, layouts change no science,
    twins keep their model's structure, and warm starts have the declared content.
    """
    from matrix.checks import check as faults_of
    from matrix.loader import ROOT, read_tree

    matrix, problems = read_tree(root or ROOT)
    problems = sorted({*problems, *faults_of(matrix)})
    if problems:
        raise MatrixError(problems)
    typer.echo(f"{len(matrix.cells)} cells, {len(matrix.models)} models, {len(matrix.hardware)} hardware, {len(matrix.recipes)} recipes: no fault")


@app.command()
def status(
    results: Annotated[Path, typer.Argument(help="A results root: what `pytest -m … --results=ROOT` wrote.")],
    tier: Annotated[str | None, typer.Option(help="Only cells of this tier.", show_default=False)] = None,
    hardware: Annotated[str | None, typer.Option(help="Only cells on this hardware.", show_default=False)] = None,
    as_json: Json = False,
    root: Root = None,
) -> None:
    """Print every declared cell with its outcome, evidence, disposition and age. A cell without a verdict is NOT_RUN; none is left out.

    python -m matrix status results
    """
    from matrix.status import as_data, grid, standings

    matrix = _load(root)
    rows = standings(results, matrix, matrix.select(tier=tier, hardware=hardware) if tier or hardware else None)
    if not rows:
        raise SelectionError("no cell matches: 'python -m matrix list' shows them all")
    typer.echo(json.dumps(as_data(rows), indent=1) if as_json else "\n".join(grid(rows)))


@app.command()
def fingerprint(directory: Annotated[Path, typer.Argument(help="A Hugging Face directory with *.safetensors.", exists=True, file_okay=False)]) -> None:
    """Print the content hash of a directory's weights, as a warm start declares it: the same however the tensors are spread over files."""
    from matrix.weights import fingerprint as hash_of

    typer.echo(hash_of(directory))


register(app)


def _load(root: Path | None) -> Matrix:
    from matrix.loader import load

    return load(root)


def _yaml(config: dict[str, Any]) -> str:
    import yaml

    return str(yaml.dump(config, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), default_flow_style=False, width=10_000, allow_unicode=True))


def main() -> None:
    """Run the command line; a fault of the declarations or of the question is its message and an exit code, never a traceback."""
    try:
        app()
    except MatrixError as error:
        typer.echo(str(error), err=True)
        typer.echo(f"{len(error.problems)} fault(s)", err=True)
        sys.exit(error.exit_code)
    except SelectionError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except ValueError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
