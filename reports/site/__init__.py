"""The site of a results root: a matrix page, a page per cell, JSON beside each. Static files that open from disk and load nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash

from reports.errors import ReportError

if TYPE_CHECKING:
    from matrix.loader import Matrix
    from reports.results import CellResult
    from reports.site.cells import Build
    from reports.site.rows import Row

CACHE = ".cache"  # in the site: what makes the next build quick; not needed to read the site
PARALLEL_FROM = 24  # pages; below that, starting processes costs more than it saves


class _State(msgspec.Struct):
    """What the last build wrote: page by cell key, with the hash of what it was made from."""

    pages: dict[str, str] = {}
    files: dict[str, list[str]] = {}
    traces: dict[str, tuple[list[tuple[str, int, int, int, int]], str]] = {}  # of the runs, see `cells.fingerprint`


def write(
    root: Path,
    out: Path,
    *,
    matrix_root: Path | None = None,
    png: str = "none",
    single_file: bool = False,
    results_url: str | None = None,
    processes: int | None = None,
    now: datetime | None = None,
) -> Path:
    """Write the site into `out` and return index.html. Every declared cell appears. A page whose inputs did not change since the last build is left as it is.

    png: `none`, `summary` (one picture a cell) or `all` (one a figure). single_file: each page holds its style sheet and script. results_url: where the results
    root can be reached from a browser, for links to logs; default: by its relative path. Raises ReportError without a root or loadable declarations.
    """
    from matrix.loader import collector_paused
    from reports.site.cells import PNGS, Build

    if png not in PNGS:
        raise ReportError(f"--png {png}: one of {', '.join(PNGS)}")
    matrix = _matrix(root, matrix_root)
    (out / "cells").mkdir(parents=True, exist_ok=True)
    build = Build(root, out, now or datetime.now(UTC), out / CACHE / "curves", png, single_file, results_url)
    with collector_paused():
        _build(build, matrix, processes or len(os.sched_getaffinity(0)))
    return out / "index.html"


def _build(build: Build, matrix: Matrix, many: int) -> None:
    from dataclasses import replace

    from reports.heads import Heads
    from reports.night import of_results
    from reports.results import results_of
    from reports.site import rows
    from reports.site.cells import fingerprint

    root, out, now, single_file = build.root, build.out, build.now, build.single_file
    results = results_of(root, matrix, Heads(root, out / CACHE / "heads.msgpack"), many, now)
    site = rows.site(results, of_results(results), now)
    build = replace(build, configurations=_configurations(matrix, results))
    code, state = _code(), _load(out)
    work = list(zip(results, site.cells))
    marks = {result.key: fingerprint(result, row, build, code, state.traces) for result, row in work}
    due = [(result, row) for result, row in work if state.pages.get(result.key) != marks[result.key] or not _whole(out, state.files.get(result.key))]
    written = _write_cells(due, build, many)
    _assets(out, single_file)
    _index(out, site, single_file, matrix)
    files = {result.key: written.get(result.key) or state.files[result.key] for result, _ in work}
    _remove_others(out, {name for names in files.values() for name in names})
    runs = {str(run) for result, _ in work for run in result.runs}
    _save(out, _State(marks, files, {run: trace for run, trace in state.traces.items() if run in runs}))


def _matrix(root: Path, matrix_root: Path | None) -> Matrix:
    from matrix import load
    from matrix.problem import MatrixError

    if not root.is_dir():
        raise ReportError(f"{root}: no such results directory")
    try:
        return load(matrix_root, today=date.min)  # an expired quarantine does not stop a page: its cell counts again, and the page says so
    except MatrixError as error:
        raise ReportError(f"the matrix cannot be loaded, so the declared cells are not known: {error.problems[0]}") from None


def _index(out: Path, site: object, single_file: bool, matrix: Matrix) -> None:
    from reports.page.render import Assets
    from reports.site.matrix_page import matrix_page
    from reports.site.rows import Site, encode

    assert isinstance(site, Site)
    (out / "index.json").write_bytes(encode(site))
    (out / "index.html").write_text(matrix_page(site, Assets(None if single_file else "")), encoding="utf-8")


def _assets(out: Path, single_file: bool) -> None:
    """The one style sheet and script of a site, under names that hold their content's hash."""
    from reports.page.render import ASSETS, files

    folder = out / "assets"
    names = set() if single_file else {path for path, _ in files().values()}
    for old in folder.glob("site-*") if folder.is_dir() else ():
        if f"assets/{old.name}" not in names:
            old.unlink()
    if single_file:
        return
    folder.mkdir(exist_ok=True)
    for path, data in files().values():
        (out / path).write_bytes(data)
    (folder / "uPlot.LICENSE").write_bytes((ASSETS / "uPlot.LICENSE").read_bytes())


_JOB: Build | None = None
_DUE: Sequence[tuple[CellResult, Row]] = ()


def _write_cells(due: Sequence[tuple[CellResult, Row]], build: Build, processes: int) -> dict[str, list[str]]:
    """Cell key -> files written. Processes are forked, so that nothing has to be sent to them."""
    global _JOB, _DUE
    _JOB, _DUE = build, due
    if len(due) < PARALLEL_FROM or processes < 2:
        return dict(map(_write_one, range(len(due))))
    import multiprocessing

    from reports.page import render, view  # noqa: F401 - imported once, before the processes are

    with multiprocessing.get_context("fork").Pool(processes) as pool:
        return dict(pool.imap_unordered(_write_one, range(len(due)), chunksize=max(len(due) // (processes * 8), 1)))


def _write_one(number: int) -> tuple[str, list[str]]:
    from matrix.loader import collector_paused
    from reports.site.cells import write_cell

    result, row = _DUE[number]
    assert _JOB is not None
    with collector_paused():
        return result.key, write_cell(result, row, _JOB)


def _configurations(matrix: Matrix, results: Sequence[CellResult]) -> dict[str, list[str]]:
    from reports.site.configuration import differences

    return differences(matrix, results)


def _whole(out: Path, names: list[str] | None) -> bool:
    return names is not None and all((out / "cells" / name).is_file() for name in names)


def _remove_others(out: Path, names: set[str]) -> None:
    """Pages of cells that are declared no more, and pictures nobody asked for this time."""
    for path in (out / "cells").iterdir():
        if path.name not in names and path.suffix in (".html", ".json", ".png"):
            path.unlink()


def _code() -> str:
    """Hash of what turns results into pages."""
    from reports.cache import code_version

    folder = Path(__file__).parent.parent
    digest = xxhash.xxh3_128(code_version().encode())
    for file in sorted([*folder.glob("*.py"), *folder.glob("page/**/*"), *folder.glob("site/**/*")]):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _load(out: Path) -> _State:
    try:
        return msgspec.msgpack.decode((out / CACHE / "state.msgpack").read_bytes(), type=_State)
    except (OSError, msgspec.MsgspecError):
        return _State()


def _save(out: Path, state: _State) -> None:
    file = out / CACHE / "state.msgpack"
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_bytes(msgspec.msgpack.encode(state))
    partial.replace(file)
