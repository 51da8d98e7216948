"""`python -m ci`: pipelines out of the matrix, the gate, and a build on this machine. Each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from matrix.problem import MatrixError, SelectionError

if TYPE_CHECKING:
    from ci.selection import Request

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Buildkite pipelines out of the matrix, the gate that decides over a build, and a build on this machine. docs/ci.md explains them.

    Exit codes: 0 fine; 1 declarations, policy or pipeline are at fault; 2 the question is (an unknown tier or cell, nothing selected); 3 buildkite-agent.
    `gate` and `run` exit with the code of the most severe blocking outcome.""",
)
Tier = Annotated[str | None, typer.Option(help="Cells of this tier: smoke, pr, nightly, weekly, release.", show_default=False)]
Cells = Annotated[list[str] | None, typer.Option("--cell", metavar="ID", help="This cell. May be repeated.", show_default=False)]
Hardware = Annotated[list[str] | None, typer.Option("--hardware", metavar="NAME", help="Only cells on this hardware. May be repeated.", show_default=False)]
Since = Annotated[
    str | None, typer.Option("--changed-since", metavar="REV", help="Only cells that the changes since this revision can break.", show_default=False)
]
Image = Annotated[
    list[str] | None,
    typer.Option("--image", metavar="NAME=sha256:…", help="Digest of an image, for one that its hardware file calls unbuilt.", show_default=False),
]
Checks = Annotated[bool, typer.Option("--checks/--no-checks", help="With lint and unit tests, or without them where they ran elsewhere.")]
SettingsFile = Annotated[Path | None, typer.Option("--settings", help="Another file than ci/settings.yaml.", show_default=False)]
PolicyFile = Annotated[Path | None, typer.Option("--policy", help="Another file than ci/policy.yaml.", show_default=False)]
Tree = Annotated[Path | None, typer.Option("--matrix", help="Another declaration tree than this checkout's matrix/.", show_default=False)]
Build = Annotated[str, typer.Option(envvar="BUILDKITE_BUILD_ID", help="The build's id; its results lie under results/<id>/.")]
SelectionFile = Annotated[Path, typer.Option("--selection", help="The build's selection, as the uploading step wrote it.")]


@app.command()
def pipeline(
    tier: Tier = None,
    cell: Cells = None,
    hardware: Hardware = None,
    changed_since: Since = None,
    image: Image = None,
    checks: Checks = True,
    build: Build = "build",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the parts of the pipeline and the selection into this folder.", show_default=False)
    ] = None,
    upload: Annotated[bool, typer.Option("--upload", help="Upload it to the running build, and keep the selection as its artifact.")] = False,
    built: Annotated[bool, typer.Option("--built", help="Inside a build: take the digests of the images that it built.")] = False,
    settings: SettingsFile = None,
    matrix: Tree = None,
) -> None:
    """Print the pipeline of a tier, of the cells that a change can break, or of single cells.

    python -m ci pipeline --tier pr --changed-since origin/main
    python -m ci pipeline --cell qwen3-4b.a3.colocate --image vime-npu-a3=sha256:…
    """
    from ci.commands import make_pipeline

    make_pipeline(_request(tier, cell, hardware, changed_since, image, build), checks, out, upload, settings, matrix, built)


def _request(tier: str | None, cell: list[str] | None, hardware: list[str] | None, since: str | None, image: list[str] | None, build: str) -> Request:
    from ci.selection import Request, digests

    if tier is None and not cell:
        raise SelectionError("name a tier with --tier, or cells with --cell")
    return Request(tier, tuple(cell or ()), tuple(hardware or ()), since, digests(image or []), build)


@app.command()
def images(
    name: Annotated[list[str] | None, typer.Argument(help="Images by name; default: all that hardware files name.", show_default=False)] = None,
    tier: Tier = None,
    registry: Annotated[str | None, typer.Option(help="Where they are pushed; default: settings.yaml's.", show_default=False)] = None,
    upload: Annotated[bool, typer.Option("--upload", help="Upload it to the running build.")] = False,
    settings: SettingsFile = None,
    matrix: Tree = None,
) -> None:
    """Print the pipeline that builds images and tells their digests; with --tier, the tier's pipeline follows, on the images just built.

    python -m ci images vime-npu-a3 --registry registry.example.com/team
    """
    from ci.commands import make_images

    make_images(tuple(name or ()), tier, registry, upload, settings, matrix)


@app.command()
def slash(
    comment: Annotated[str, typer.Option(envvar="VIME_COMMENT", help="A comment that begins with /vime.")],
    upload: Annotated[bool, typer.Option("--upload", help="Upload what it asks for to the running build.")] = False,
    build: Build = "build",
    settings: SettingsFile = None,
    matrix: Tree = None,
) -> None:
    """A comment of a pull request as a pipeline: /vime run qwen3-4b.a3.colocate; /vime tier nightly on a3; /vime images vime-npu-a3."""
    from ci.commands import make_images, make_pipeline
    from ci.slash import parse

    asked = parse(comment)
    if asked.images:
        make_images(asked.images, None, None, upload, settings, matrix)
    else:
        make_pipeline(_request(asked.tier, list(asked.cells), list(asked.hardware), None, None, build), False, None, upload, settings, matrix)


@app.command()
def judge(cell: str, look: Annotated[int, typer.Option(min=1)], selection: SelectionFile, settings: SettingsFile = None) -> None:
    """A step of a build: judge a cell's runs, and upload the next seed while the verdict is INCONCLUSIVE."""
    from ci.commands import judge_cell

    raise typer.Exit(judge_cell(cell, look, selection, settings))


@app.command()
def collect(round_: Annotated[int, typer.Option("--round", min=1)], selection: SelectionFile, settings: SettingsFile = None) -> None:
    """A step of a build: upload what follows a round of looks, the next such step or report and gate."""
    from ci.commands import collect_round

    collect_round(round_, selection, settings)


@app.command()
def release(selection: SelectionFile, settings: SettingsFile = None) -> None:
    """A step of a build: upload the steps of the cells that a person ticked."""
    from ci.commands import release_cells

    release_cells(selection, settings)


@app.command()
def fetch(results: Path) -> None:
    """A step of a build: get all that the build's runs and verdicts left, as far as there is anything."""
    from ci.commands import fetch_results

    fetch_results(results)


@app.command()
def gate(
    results: Annotated[Path, typer.Argument(help="Results: <root>/<cell key>/verdicts/.")],
    policy: PolicyFile = None,
    tier: Tier = None,
    selection: Annotated[Path | None, typer.Option("--selection", help="A build's selection: decide over its cells.", show_default=False)] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for annotation.md, status.txt and gate.json.")] = Path("gate"),
    buildkite: Annotated[bool, typer.Option("--buildkite", help="Inside a build: fetch verdicts, read the checks' outcomes, annotate the build.")] = False,
    summary: Annotated[
        Path | None, typer.Option(envvar="GITHUB_STEP_SUMMARY", help="Add the annotation to this file: a GitHub job's summary.", show_default=False)
    ] = None,
    settings: SettingsFile = None,
    matrix: Tree = None,
) -> None:
    """Decide: which outcomes block, warn or pass. The exit code is that of the most severe blocking outcome, in the policy's order.

    python -m ci gate results --policy ci/policy.yaml --tier nightly
    """
    from ci.commands import decide_gate

    raise typer.Exit(decide_gate(results, policy, tier, selection, out, buildkite, summary, settings, matrix))


@app.command()
def run(
    tier: Tier = None,
    cell: Cells = None,
    hardware: Hardware = None,
    changed_since: Since = None,
    checks: Checks = True,
    release: Annotated[list[str] | None, typer.Option("--release", metavar="CELL", help="Tick this cell at the block step.", show_default=False)] = None,
    agents: Annotated[int, typer.Option(min=1, help="Jobs at once.")] = 2,
    folder: Annotated[Path, typer.Option(help="Where logs, artifacts and annotations of local builds go.")] = Path(".cache/ci"),
    settings: SettingsFile = None,
    matrix: Tree = None,
) -> None:
    """Run the very pipeline on this machine, without Buildkite. The exit code is the gate's.

    python -m ci run --tier smoke
    """
    from ci.commands import run_here

    request = _request(tier, cell, hardware, changed_since, None, "local")
    raise typer.Exit(run_here(request, checks, release or [], agents, folder, settings, matrix))


def main() -> None:
    """Run the command line; a mistake is its message and an exit code, never a traceback."""
    try:
        app()
    except (MatrixError, SelectionError) as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if not isinstance(code, int):
            raise
        typer.echo(str(error), err=True)
        sys.exit(code)
