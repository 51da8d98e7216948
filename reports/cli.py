"""`python -m reports`: judge runs, draw them, compare them, keep baselines. Each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from reports.cli_baseline import app as baseline_app
from reports.cli_judge import FormatOption, Runs, register
from reports.errors import USAGE_EXIT_CODE, ReportError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Read training runs, judge them against a baseline, draw them. docs/verdict.md explains the rule.

    A run is a vime run directory, or a file or URL in any format that docs/readers.md lists.""",
)
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
