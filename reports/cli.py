"""`python -m reports`: judge runs, draw them, compare them, keep baselines. Each command imports what it needs when it runs."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from reports.cli_baseline import app as baseline_app
from reports.cli_judge import register
from reports.errors import USAGE_EXIT_CODE, ReportError
from reports.options import CacheOption, FormatOption, NameOption, NamesOption, StepOption

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Read training runs, judge them against a baseline, draw them. docs/verdict.md explains the rule.

    A run is a vime run directory, or a file or URL in any format that docs/readers.md lists.""",
)
app.add_typer(baseline_app, name="baseline")

Root = Annotated[Path, typer.Argument(help="Results: <root>/<cell key>/<run>/ and <root>/<cell key>/verdicts/.", show_default=False)]
MatrixOption = Annotated[Path | None, typer.Option("--matrix", help="Another declaration tree than this checkout's matrix/.", show_default=False)]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


register(app)


@app.command()
def site(
    root: Root,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the site.")] = Path("report"),
    open_it: OpenOption = False,
    png: Annotated[str, typer.Option(help="PNG beside the pages: none, summary (one a cell) or all (one a figure). Each takes a fifth of a second.")] = "none",
    single_file: Annotated[bool, typer.Option("--single-file", help="Every page holds its style sheet and script, to be sent on its own.")] = False,
    results_url: Annotated[
        str | None, typer.Option(help="Where a browser finds the results root, for links to logs. Default: its path relative to the site.", show_default=False)
    ] = None,
    matrix: MatrixOption = None,
) -> None:
    """Write the site: a matrix page of every declared cell, a page per cell, JSON beside each. Only pages whose inputs changed are written again.

    python -m reports site results -o report --open
    """
    from reports.site import write

    index = write(root, out, matrix_root=matrix, png=png, single_file=single_file, results_url=results_url)
    typer.echo(str(index))
    _open(index, open_it)


@app.command()
def annotate(
    root: Root,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File to write. Default: standard output.", show_default=False)] = None,
    tier: Annotated[str | None, typer.Option(help="Only cells of this tier.", show_default=False)] = None,
    cell: Annotated[list[str] | None, typer.Option(help="Only this cell; may be repeated.", show_default=False)] = None,
    link: Annotated[
        str | None, typer.Option(help="Address of the site, for links to cells, such as https://ci.example/report or artifact://report.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(help="Most bytes.", min=1000)] = 1024 * 1024,
    matrix: MatrixOption = None,
) -> None:
    """The cells as Markdown, for a pull request's comment or a Buildkite annotation: what needs eyes first, at most 1 MiB.

    python -m reports annotate results --tier nightly --link artifact://report
    """
    from reports.site.annotation import of_results

    text = of_results(root, matrix, tier=tier, cells=cell, link=link, limit=limit)
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text, encoding="utf-8")


@app.command()
def bisect(
    root: Root,
    cell: Annotated[str, typer.Argument(help="A cell id.", show_default=False)],
    repository: Annotated[Path, typer.Option(help="The checkout whose commits were judged.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print it as data.")] = False,
    matrix: MatrixOption = None,
) -> None:
    """Since which commit a cell is bad: narrowed from stored verdicts, with the runs that would settle the rest. Runs nothing.

    python -m reports bisect results qwen3-4b.cpu.colocate
    """
    from reports.bisect import bisect as narrowed

    found = narrowed(root, cell, repository, matrix)
    typer.echo(found.json() if as_json else "\n".join(found.lines()))


@app.command()
def table(root: Root, matrix: MatrixOption = None) -> None:
    """Print one line per declared cell: outcome, seeds, age, reason."""
    from reports.results import read_results
    from reports.show import print_table

    print_table(read_results(root, matrix))


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Run directories, files of curves, or fsspec URLs; FILE#NAME is one run of a file.", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the page.")] = Path("comparison"),
    open_it: OpenOption = False,
    metric: Annotated[str | None, typer.Option(help="Metric drawn large. Default: rollout/reward_mean, else the first they share.", show_default=False)] = None,
    png: Annotated[bool, typer.Option(help="Also a PNG of every figure.")] = True,
    format: FormatOption = None,
    step: StepOption = None,
    name: NameOption = None,
    names: NamesOption = None,
    cache: CacheOption = None,
) -> None:
    """Draw two or more runs over each other, with every metric they share. Any format that can be judged can be compared.

    python -m reports compare runs/a runs/b --open
    python -m reports compare ours.jsonl theirs.csv --step epoch --name rollout/reward_mean=score
    """
    from reports.compare import compare_paths
    from reports.options import reading

    index = compare_paths(runs, out, reading(format, step, name or [], names, cache), metric, png=png)
    typer.echo(str(index))
    _open(index, open_it)


def _open(index: Path, wanted: bool) -> None:
    if wanted:
        import webbrowser

        webbrowser.open(index.resolve().as_uri())


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding does not have
    try:
        app()
    except ReportError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(USAGE_EXIT_CODE)
