"""A baseline to be sent: one file with the runs as they lie, what is said about them, a page of their curves, and a hash of every file.

bundle.json            `Contents`
recipe.yaml            by what the runs are to be judged, where the contributor said it
runs/<n>/…             the files of one run, byte for byte (a file that holds several runs is there once)
report/index.html      the curves, for whoever decides about it
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from reports.claims import Claim, gaps
from reports.errors import ReportError
from reports.metrics import REWARD
from reports.model import NoteKind, Run
from reports.readers import read_runs
from reports.readers.base import Reading
from reports.store import files_of

FILE, RECIPE = "bundle.json", "recipe.yaml"
SCHEMA_VERSION = 1
LARGEST = 1 << 32  # bytes of all files together, unpacked


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BundledRun(Part):
    """One run: where it lies in the bundle, its name within a file of several, and the hash of its curves as they were read."""

    path: str
    part: str = ""
    sha: str


class How(Part):
    """How the files were read, so that they are read the same way again."""

    format: str | None = None
    step: str | None = None
    names: dict[str, str] = {}


class Contents(Part):
    """What bundle.json says. files: path in the bundle -> sha256."""

    schema_version: int = SCHEMA_VERSION
    created: str
    command: str
    metric: str
    claim: Claim | None = None
    reading: How = How()
    runs: list[BundledRun]
    files: dict[str, str]


def pack(runs: Sequence[Run], out: Path, command: str, metric: str, reading: Reading, claim: Claim | None, recipe: Path | None = None) -> Path:
    """Write the bundle (.tar.gz). Raises ReportError for runs that cannot be read, lack the metric, or do not say where they come from."""
    bad = [f"{run.name}: {note.text}" for run in runs for note in run.notes_of(NoteKind.UNREADABLE)] + gaps(runs, claim)
    bad += [f"{run.name}: {metric} is not recorded" for run in runs if run.curves and metric not in run.curves]
    if bad or not runs:
        raise ReportError("not bundled:\n  " + "\n  ".join(bad or ["no run"]))
    files, bundled = _files(runs)
    if recipe is not None:
        files[RECIPE] = recipe.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        _report(runs, metric, Path(folder))
        files |= {f"report/{path.name}": path.read_bytes() for path in sorted(Path(folder).iterdir())}
    contents = Contents(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        metric=metric,
        claim=claim,
        reading=How(format=reading.format, step=reading.step, names=dict(reading.names)),
        runs=bundled,
        files={name: sha256(data).hexdigest() for name, data in files.items()},
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    _write(partial, {FILE: contents.model_dump_json(indent=1, exclude_none=True).encode() + b"\n"} | files)
    partial.replace(out)
    return out


def _files(runs: Sequence[Run]) -> tuple[dict[str, bytes], list[BundledRun]]:
    places: dict[str, str] = {}
    files: dict[str, bytes] = {}
    bundled = []
    for run in runs:
        where = run.url or str(run.path)
        if where not in places:
            folder = f"runs/{len(places)}"
            own = {f"{folder}/{path}": source for path, source in files_of(run)}
            whole = len(own) == 1 and not run.path.is_dir()
            places[where] = next(iter(own)) if whole else folder
            for name, source in own.items():
                with source.open_raw() as file:
                    files[name] = file.read()
        bundled.append(BundledRun(path=places[where], part=run.part, sha=run.sha))
    return files, bundled


def _report(runs: Sequence[Run], metric: str, out: Path) -> None:
    from reports.compare import write_comparison

    groups = {f"{run.name} ({number})" if sum(one.name == run.name for one in runs) > 1 else run.name: [run] for number, run in enumerate(runs)}
    write_comparison(groups, out, metric if metric in runs[0].curves else REWARD, f"{len(runs)} runs for a baseline")


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """The same files give the same bytes, whenever and wherever they are packed."""
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))


@contextmanager
def unpacked(bundle: Path) -> Iterator[tuple[Contents, list[Run], Path]]:
    """(contents, runs, folder) of a bundle, for as long as the block lasts. Every file is held to its hash, every curve to the one it was bundled with.

    Raises ReportError for a file that is no bundle, was changed, or is read otherwise by this version.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _extract(bundle, folder)
        contents = _contents(bundle, folder / FILE)
        _verify(bundle, folder, contents)
        reading = Reading(contents.reading.format, contents.reading.step, contents.reading.names)
        read = {path: read_runs([folder / path], reading) for path in dict.fromkeys(run.path for run in contents.runs)}
        runs = [_same(bundle, entry, read[entry.path]) for entry in contents.runs]
        yield contents, runs, folder


def _extract(bundle: Path, into: Path) -> None:
    if not bundle.is_file():
        raise ReportError(f"{bundle}: no such file")
    try:
        with tarfile.open(bundle, "r:gz") as archive:
            members = archive.getmembers()
            if not all(member.isfile() for member in members) or sum(member.size for member in members) > LARGEST:
                raise ReportError(f"{bundle}: holds links, or more than {LARGEST} bytes: no bundle of `baseline bundle`")
            archive.extractall(into, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ReportError(f"{bundle}: no whole bundle ({error})") from None


def _contents(bundle: Path, file: Path) -> Contents:
    if not file.is_file():
        raise ReportError(f"{bundle}: holds no {FILE}: make one with `python -m reports baseline bundle`")
    try:
        contents = Contents.model_validate_json(file.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        raise ReportError(f"{bundle}: {FILE}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if contents.schema_version != SCHEMA_VERSION:
        raise ReportError(f"{bundle}: bundle of schema {contents.schema_version}, this version reads {SCHEMA_VERSION}")
    return contents


def _verify(bundle: Path, folder: Path, contents: Contents) -> None:
    there = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / FILE}
    if there.keys() != contents.files.keys():
        odd = sorted(there.keys() ^ contents.files.keys())
        raise ReportError(f"{bundle}: its files are not those that {FILE} lists: {', '.join(odd[:5])}")
    changed = [name for name, path in there.items() if sha256(path.read_bytes()).hexdigest() != contents.files[name]]
    if changed:
        raise ReportError(f"{bundle}: {changed[0]} does not match its hash: the bundle was changed after it was made")


def _same(bundle: Path, entry: BundledRun, runs: Sequence[Run]) -> Run:
    found = [run for run in runs if run.part == entry.part]
    if len(found) != 1 or found[0].sha != entry.sha:
        raise ReportError(
            f"{bundle}: {entry.path}{'#' + entry.part if entry.part else ''} is read otherwise than when it was bundled: bundle it again with this version"
        )
    return found[0]
