"""The commands about baselines: record, replace, bundle, import, show, list, diff, fetch."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reports.errors import ReportError
from reports.options import FormatOption, NameOption, NamesOption, RecipeOption, Runs, StepOption

if TYPE_CHECKING:
    from reports.record import Origin

Into = Annotated[Path, typer.Option("-o", "--into", help="Where baselines are kept; the folder inside is named after the science hash.")]
FolderName = Annotated[str | None, typer.Option("--as", help="Folder name for runs without a science hash.", show_default=False)]
ProvenanceOption = Annotated[
    Path | None, typer.Option("--provenance", help="YAML that says where runs come from whose files do not (docs/baselines.md).", show_default=False)
]
Expires = Annotated[int, typer.Option("--expires", min=1, help="Days after which the baseline is stale.")]
StoreOption = Annotated[str | None, typer.Option("--store", help="fsspec root (s3://…, a path) for the runs' whole files.", show_default=False)]
Science = Annotated[str | None, typer.Option("--science-hash", help="The science hash that is claimed for runs without one.", show_default=False)]
Folder = Annotated[Path, typer.Argument(help="A baseline folder.", show_default=False)]
DEFAULT = Path("matrix/baselines")

app = typer.Typer(no_args_is_help=True, help="Keep baselines: whole runs of the reference, with their provenance. docs/baselines.md explains them.")


@app.command()
def record(
    runs: Runs,
    into: Into = DEFAULT,
    recipe: RecipeOption = None,
    folder: FolderName = None,
    provenance: ProvenanceOption = None,
    science_hash: Science = None,
    expires: Expires = 180,
    store: StoreOption = None,
    format: FormatOption = None,
    step: StepOption = None,
    name: NameOption = None,
    names: NamesOption = None,
) -> None:
    """Record whole, healthy runs as a baseline. Broken, unfinished, failed and copied runs are refused, and a baseline that is there is left alone.

    python -m reports baseline record results/baseline/seed-* -o matrix/baselines
    """
    _record(runs, into, recipe, folder, _origin(provenance, expires, store, science_hash), (format, step, name, names))


@app.command()
def replace(
    runs: Runs,
    reason: Annotated[str, typer.Option(help="Why the baseline is replaced.", show_default=False)],
    approver: Annotated[str, typer.Option(help="Who approved it.", show_default=False)],
    into: Into = DEFAULT,
    recipe: RecipeOption = None,
    folder: FolderName = None,
    provenance: ProvenanceOption = None,
    science_hash: Science = None,
    expires: Expires = 180,
    store: StoreOption = None,
    format: FormatOption = None,
    step: StepOption = None,
    name: NameOption = None,
    names: NamesOption = None,
) -> None:
    """Replace a baseline. Runs that FAIL, are INCOMPLETE or INVALID, or lie outside the margins around the old or the frozen baseline are refused.

    The old runs and a page with old and new curves stay in the folder's replaced/<time>/.

    python -m reports baseline replace results/baseline/seed-* --reason "new optimizer build" --approver "who decided"
    """
    _record(runs, into, recipe, folder, _origin(provenance, expires, store, science_hash), (format, step, name, names), reason, approver)


@app.command()
def bundle(
    runs: Runs,
    out: Annotated[Path, typer.Option("-o", "--out", help="The bundle to write.")] = Path("baseline.tar.gz"),
    recipe: RecipeOption = None,
    metric: Annotated[str | None, typer.Option(help="The judged metric, where no recipe names it.", show_default=False)] = None,
    provenance: ProvenanceOption = None,
    format: FormatOption = None,
    step: StepOption = None,
    name: NameOption = None,
    names: NamesOption = None,
) -> None:
    """Put runs, where they come from, and a page of their curves into one file that `baseline import` takes.

    python -m reports baseline bundle runs/seed-* --recipe grpo.yaml --provenance where.yaml -o baseline.tar.gz
    """
    from reports.bundle import pack
    from reports.claims import read_claim
    from reports.metrics import REWARD
    from reports.options import reading
    from reports.readers import read_runs
    from reports.readers.names import resolve_metric
    from reports.recipes import for_runs

    how = reading(format, step, name or [], names)
    found = read_runs(runs, how)
    held = for_runs(found, recipe)
    judged = resolve_metric(metric or (held.rule.metric if held else REWARD), found)
    claim = read_claim(provenance) if provenance else None
    pack(found, out, _command(), judged, how, claim, Path(recipe) if recipe and Path(recipe).is_file() else None)
    typer.echo(f"{out}: {len(found)} runs, {out.stat().st_size} bytes")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A bundle, as `baseline bundle` writes it.", show_default=False)],
    into: Into = DEFAULT,
    recipe: RecipeOption = None,
    folder: FolderName = None,
    science_hash: Science = None,
    expires: Expires = 180,
    store: StoreOption = None,
    reason: Annotated[str | None, typer.Option(help="Why a baseline that is there is replaced.", show_default=False)] = None,
    approver: Annotated[str | None, typer.Option(help="Who approved that.", show_default=False)] = None,
) -> None:
    """Record the runs of a bundle as a baseline, held to the same rules as one's own. Its own recipe is taken where --recipe names no other.

    python -m reports baseline import baseline.tar.gz --as grpo-gbs256
    """
    from reports.bundle import RECIPE, unpacked
    from reports.record import Origin
    from reports.record import record as write
    from reports.rules import resolve

    with unpacked(file) as (contents, runs, inside):
        held = resolve(runs, recipe or (str(inside / RECIPE) if (inside / RECIPE).is_file() else None), {}, science_hash, science_hash is None)
        origin = Origin(contents.claim, _last_day(expires), store, science_hash)
        written = write(runs, held.rule, held.declared, into, _command(), name=folder, reason=reason, approver=approver, origin=origin)
        typer.echo(f"{written}: {len(runs)} runs")


@app.command()
def show(folder: Folder) -> None:
    """Print a baseline's provenance, and mean and spread of its runs; fails if a file does not match its hash."""
    from reports.show import print_baseline

    print_baseline(folder)


@app.command("list")
def list_(
    root: Annotated[Path, typer.Argument(help="Where baselines are kept.")] = DEFAULT,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if one of them has expired.")] = False,
) -> None:
    """Print every baseline with its age and the day it expires."""
    from reports.baseline import FILE, read_provenance

    folders = sorted(path.parent for path in root.glob(f"*/{FILE}"))
    if not folders:
        raise ReportError(f"{root}: holds no baseline")
    stale = 0
    for folder in folders:
        told = read_provenance(folder)
        days = (datetime.now(UTC) - datetime.fromisoformat(told.date)).days
        stale += bool(told.stale())
        state = f"EXPIRED on {told.last_day}" if told.stale() else f"valid to {told.last_day}"
        typer.echo(f"{folder.name:<24} {len(told.runs):>3} runs  {days:>4} days old  {state}  {told.cell or told.recipe or told.metric}")
    raise typer.Exit(1 if check and stale else 0)


@app.command()
def diff(
    folder: Folder,
    other: Annotated[Path | None, typer.Argument(help="Another one. Default: the frozen baseline of the same science.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Also write a page with both.", show_default=False)] = None,
    recipe: RecipeOption = None,
) -> None:
    """Compare a baseline with another, or with the frozen one that it descends from: every statistic with its interval, and what differs in provenance.

    python -m reports baseline diff matrix/baselines/f6c7ecc03957
    """
    from reports.diff import difference

    found = difference(folder, other, recipe)
    for line in found.lines:
        typer.echo(line)
    if out is not None:
        typer.echo(str(found.write(out)))


@app.command()
def fetch(
    folder: Folder,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the files go: <out>/seed-<n>/…")] = Path("baseline-files"),
    store: StoreOption = None,
) -> None:
    """Fetch the whole files of a baseline's runs from its store, each held to the hash in git."""
    from reports.baseline import read_provenance
    from reports.store import get

    told = read_provenance(folder)
    root = store or told.store
    if not root or not told.files:
        raise ReportError(f"{folder}: was recorded without --store: it holds the slimmed runs only")
    files = get(root, told.files, out)
    typer.echo(f"{out}: {len(files)} files, each matches its hash")


def _record(
    paths: list[Path],
    into: Path,
    recipe: str | None,
    folder: str | None,
    origin: Origin,
    said: tuple[str | None, str | None, list[str] | None, Path | None],
    reason: str | None = None,
    approver: str | None = None,
) -> None:
    from reports.options import reading
    from reports.readers import read_runs
    from reports.record import record as write
    from reports.rules import resolve

    format, step, name, names = said
    found = read_runs(paths, reading(format, step, name or [], names))
    held = resolve(found, recipe, {}, origin.science_hash, origin.claim is not None and origin.science_hash is None)
    written = write(found, held.rule, held.declared, into, _command(), name=folder, reason=reason, approver=approver, origin=origin)
    typer.echo(f"{written}: {len(found)} runs")
    if (written / "replaced").is_dir() and reason:
        typer.echo("replaced: the old curves and a review page are in its folder replaced/")


def _origin(provenance: Path | None, expires: int, store: str | None, science_hash: str | None) -> Origin:
    from reports.claims import read_claim
    from reports.record import Origin

    return Origin(read_claim(provenance) if provenance else None, _last_day(expires), store, science_hash)


def _last_day(days: int) -> date:
    return (datetime.now(UTC) + timedelta(days=days)).date()


def _command() -> str:
    return shlex.join(["python", "-m", "reports", *sys.argv[1:]])
