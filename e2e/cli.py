"""`python -m e2e`: run cells without pytest, record baselines, plant faults."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from matrix.problem import MatrixError, SelectionError, shown

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Run cells of the matrix end to end: 'python -m matrix list' shows them; 'pytest -m cpu_e2e' runs a whole tier.

    Exit codes: 0 PASS, 1 FAIL, 10 INCONCLUSIVE, 11 INCOMPLETE, 12 INVALID, 13 INFRA, 15 NO_BASELINE, 16 NOT_RUN; 2 a mistake in the command.""",
)
Cell = Annotated[str, typer.Argument(help="A cell id, as 'python -m matrix list' prints it.", show_default=False)]
Results = Annotated[Path, typer.Option("--results", help="Where run directories and verdicts go.")]
Tree = Annotated[Path | None, typer.Option("--matrix", help="Another declaration tree than this checkout's matrix/.", show_default=False)]
Command = Annotated[
    str | None,
    typer.Option("--train-command", help="What makes a run; '<config> --out <run>' is added. Default: this Python's vime train.", show_default=False),
]

Leases = Annotated[
    Path | None,
    typer.Option("--leases", help="Where the locks of this machine's devices lie; all who share the devices name one place.", show_default=False),
]


@app.command("run")
def run_cells(
    cell: Cell,
    seeds: Annotated[
        str | None, typer.Option(help="These seeds and no others, e.g. 100 or 100-102. Default: the recipe's, more while the verdict asks.", show_default=False)
    ] = None,
    results: Results = Path("results"),
    rerun: Annotated[bool, typer.Option("--rerun", help="Run again what has finished already.")] = False,
    no_judge: Annotated[bool, typer.Option("--no-judge", help="Make the runs, do not judge them.")] = False,
    judge_only: Annotated[bool, typer.Option("--judge-only", help="Judge the runs that lie in the results root, run nothing.")] = False,
    fault: Annotated[
        str | None, typer.Option(help="Plant a fault ('python -m e2e.faults' lists them); its results go to <results>/fault-<name>.", show_default=False)
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override the resolved configuration, for an experiment.", show_default=False)
    ] = None,
    train_command: Command = None,
    leases: Leases = None,
    matrix: Tree = None,
) -> None:
    """Run one cell: its seeds, their verdict.

    python -m e2e run qwen3-4b.cpu.colocate
    python -m e2e run qwen3-4b.cpu.colocate --fault lr-tenth      a fault must not PASS
    """
    from e2e.cell_run import Options, run_cell
    from e2e.live import display
    from e2e.run_plan import TRAIN
    from e2e.selection import check_candidates, seeds_of
    from e2e.verdict import disposition
    from matrix.loader import load

    tree = load(matrix)
    command = tuple(shlex.split(train_command)) if train_command else TRAIN
    options = Options(results.resolve(), seeds_of(seeds) if seeds is not None else (), rerun, not no_judge, judge_only, command, tuple(set_ or ()), leases)
    if options.judge:
        check_candidates([tree.cell(cell)], options.seeds)
    if fault is not None:
        from e2e.faults import plant

        options = plant(fault, options, tree.cell(cell))
    with display() as progress:
        verdict = run_cell(tree, tree.cell(cell), options, progress)
    _print(verdict.outcome, [asdict(verdict)], disposition(tree.cell(cell), verdict))


def _print(outcome: object, verdicts: list[dict[str, object]], disposition: object) -> None:
    from e2e.summary import table
    from matrix.outcome import Outcome

    for verdict in verdicts:
        for line in table([{**verdict, "disposition": str(disposition)}]):
            typer.echo(line)
        reasons = verdict["reasons"]
        for reason in reasons[1:] if isinstance(reasons, tuple) else ():
            typer.echo(f"  {reason}")
        if verdict["path"]:
            typer.echo(f"verdict: {shown(Path(str(verdict['path'])))}")
    raise typer.Exit(outcome.exit_code if isinstance(outcome, Outcome) else 0)


@app.command()
def baseline(
    cell: Cell,
    seeds: Annotated[str, typer.Option(help="Seeds of the baseline, 0 to 99.")] = "0-19",
    results: Results = Path("results/baseline"),
    into: Annotated[Path | None, typer.Option("--into", help="Where baselines are kept. Default: the tree's baselines/.", show_default=False)] = None,
    reason: Annotated[str | None, typer.Option(help="Why a baseline that is there is replaced.", show_default=False)] = None,
    approver: Annotated[str | None, typer.Option(help="Who approved that.", show_default=False)] = None,
    train_command: Command = None,
    leases: Leases = None,
    matrix: Tree = None,
) -> None:
    """Make the runs of a cell's baseline and record them in matrix/baselines/<science hash>/. Runs that are there already are not made again,
    also when other code made them (their manifests name the commit): hours of runs outlive a commit. Move the results root away to make all anew.

    All cells that learn the same share a baseline: record it from the plainest one.

    python -m e2e baseline qwen3-4b.cpu.non-colocate --seeds 0-19
    """
    from e2e.cell_run import Options, run_cell
    from e2e.live import display
    from e2e.run_plan import TRAIN
    from e2e.selection import seeds_of
    from e2e.verdict import declared
    from matrix.loader import load

    tree = load(matrix)
    found = tree.cell(cell)
    chosen = seeds_of(seeds)
    if max(chosen) > 99:
        raise ValueError(f"--seeds {seeds}: a baseline takes seeds 0 to 99; {max(chosen)} is a candidate's")
    command = tuple(shlex.split(train_command)) if train_command else TRAIN
    options = Options(results.resolve(), chosen, judge=False, command=command, lease_directory=leases, same_code=False)
    with display() as progress:
        verdict = run_cell(tree, found, options, progress)
    if verdict.outcome is not None:
        _print(verdict.outcome, [asdict(replace(verdict, path=""))], found.disposition)
    from reports.readers import read_runs
    from reports.record import record

    runs = read_runs([options.root / found.key / f"seed-{seed}" for seed in chosen])
    made = shlex.join(["python", "-m", "e2e", "baseline", cell, "--seeds", seeds])
    folder = record(runs, found.recipe.value.judge, declared(tree, found), into or tree.root / "baselines", made, reason=reason, approver=approver)
    typer.echo(f"{shown(folder)}: {len(runs)} runs")


def main() -> None:
    """Run the command line; mistakes are one message and an exit code, never a traceback."""
    from e2e.leases import LeaseError
    from reports.errors import ReportError

    try:
        app()
    except (MatrixError, SelectionError) as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"{error.filename}: {error.strerror}: name another place with --results or --leases", err=True)
        sys.exit(2)
    except (ReportError, LeaseError, ValueError) as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
