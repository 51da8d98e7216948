"""`python -m reports`: judge runs, draw them, compare them, keep baselines. Each command imports what it needs when it runs."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from reports.cli_judge import FormatOption, RecipeOption, Runs, register
from reports.errors import USAGE_EXIT_CODE, ReportError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Read training runs, judge them against a baseline, draw them. docs/verdict.md explains the rule.

    A run is a vime run directory or a JSONL file of {"step": 3, "metrics": {"rollout/reward_mean": 0.41}}.""",
)
baseline_app = typer.Typer(no_args_is_help=True, help="Keep baselines: whole runs of the reference, with their provenance.")
app.add_typer(baseline_app, name="baseline")

OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


register(app)


@app.command()
def page(
    root: Annotated[Path, typer.Argument(help="Results: <root>/<cell key>/<run>/ and <root>/<cell key>/verdicts/.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the page.")] = Path("report"),
    open_it: OpenOption = False,
    matrix: Annotated[Path | None, typer.Option(help="Another declaration tree than this checkout's matrix/.", show_default=False)] = None,
) -> None:
    """Write an HTML page of every declared cell and its verdict, with a page, a PNG and a JSON file per cell.

    python -m reports page results -o report --open
    """
    from reports.page import write

    index = write(root, out, matrix_root=matrix)
    typer.echo(str(index))
    _open(index, open_it)


@app.command()
def table(
    root: Annotated[Path, typer.Argument(help="Results: <root>/<cell key>/verdicts/.")],
    matrix: Annotated[Path | None, typer.Option(help="Another declaration tree than this checkout's matrix/.", show_default=False)] = None,
) -> None:
    """Print one line per declared cell: outcome, seeds, age, reason."""
    from reports.results import read_results
    from reports.show import print_table

    print_table(read_results(root, matrix))


@app.command()
def compare(
    runs: Runs,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the page.")] = Path("comparison"),
    open_it: OpenOption = False,
    format: FormatOption = None,
) -> None:
    """Draw two or more runs over each other, with every metric they share.

    python -m reports compare runs/a runs/b --open
    """
    from reports.compare import compare_paths

    index = compare_paths(runs, out, format)
    typer.echo(str(index))
    _open(index, open_it)


@app.command()
def calibrate(
    baseline: Annotated[list[Path], typer.Argument(help="A baseline folder, or runs.", show_default=False)],
    recipe: RecipeOption = None,
    trials: Annotated[int, typer.Option(min=100, help="Resampled nights per row.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    into: Annotated[
        Path | None,
        typer.Option(help="Write the table into a document, between its marks <!-- calibrate RECIPE --> and <!-- end calibrate -->.", show_default=False),
    ] = None,
    spread: Annotated[str | None, typer.Option(help="welch or larger: try the other rule for two and three candidates.", show_default=False)] = None,
    format: FormatOption = None,
) -> None:
    """How often the rule says PASS, FAIL and INCONCLUSIVE of healthy and of broken candidates, resampled from stored runs: a Markdown table.

    python -m reports calibrate matrix/baselines/3f2a9c81d0be --recipe spell-backward
    """
    from reports.baseline import load_baseline
    from reports.calibrate import operating_characteristic
    from reports.calibrate.table import as_markdown, write_between_marks
    from reports.rules import resolve

    runs, _ = load_baseline(baseline, format)
    held = resolve(runs, recipe, {"spread": spread} if spread else {}, None, False)
    text = as_markdown(operating_characteristic(runs, held.rule, trials, seed), held)
    typer.echo(text)
    if into is not None:
        write_between_marks(into, held.name, text)


@baseline_app.command("record")
def baseline_record(
    runs: Runs,
    into: Annotated[Path, typer.Option("-o", "--into", help="Where baselines are kept; the folder inside is named after the science hash.")] = Path(
        "matrix/baselines"
    ),
    recipe: RecipeOption = None,
    name: Annotated[str | None, typer.Option(help="Folder name for runs without a science hash.", show_default=False)] = None,
    reason: Annotated[str | None, typer.Option(help="Why an existing baseline is replaced.", show_default=False)] = None,
    approver: Annotated[str | None, typer.Option(help="Who approved the replacement.", show_default=False)] = None,
    format: FormatOption = None,
) -> None:
    """Record whole, healthy runs as a baseline. Broken, unfinished, failed and copied runs are refused; so is replacing one without reason and approver.

    python -m reports baseline record results/baseline/seed-* -o matrix/baselines
    """
    from reports.readers import read_runs
    from reports.record import record
    from reports.rules import resolve

    found = read_runs(runs, format)
    held = resolve(found, recipe, {}, None, False)
    folder = record(found, held.rule, held.declared, into, _command(), name=name, reason=reason, approver=approver)
    typer.echo(f"{folder}: {len(found)} runs")
    for line in ("replaced: the old curves and a review page are in its folder replaced/",) if reason else ():
        typer.echo(line)


@baseline_app.command("show")
def baseline_show(folder: Annotated[Path, typer.Argument(help="A baseline folder.", show_default=False)]) -> None:
    """Print a baseline's provenance, and mean and spread of its runs; fails if a file does not match its hash."""
    from reports.show import print_baseline

    print_baseline(folder)


def _command() -> str:
    return shlex.join(["python", "-m", "reports", *sys.argv[1:]])


def _open(index: Path, wanted: bool) -> None:
    if wanted:
        import webbrowser

        webbrowser.open(index.resolve().as_uri())


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2, never a traceback."""
    try:
        app()
    except ReportError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(USAGE_EXIT_CODE)
