"""One cell's page and JSON file. Everything a page is made of has a hash, so that a page whose inputs are as they were is left alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from reports.cache import content_hash, signature_of
from reports.cache.entry import Signature
from reports.history import BadRange
from reports.page.payload import Curves, fitted
from reports.page.provenance import folder_address
from reports.page.render import Assets, render
from reports.page.view import CellView, cell_view
from reports.results import CellResult
from reports.site.rows import STATE_MARKS, Row

REASONS_SHOWN = 40
PNGS = ("none", "summary", "all")


@dataclass(frozen=True)
class Build:
    """How the pages of a site are written."""

    root: Path
    out: Path
    now: datetime
    cache: Path | None = None  # folder of parsed curves
    png: str = "none"
    single_file: bool = False
    results_url: str | None = None  # where the results root can be read from the site; None: its relative path
    configurations: Mapping[str, list[str]] = field(default_factory=dict)  # cell key -> how its declaration differs from its baseline's

    @cached_property
    def base(self) -> str:
        """Address of the results root from a cell's page."""
        return (self.results_url if self.results_url is not None else folder_address(self.out / "cells" / "x", self.root)).rstrip("/")

    @property
    def assets(self) -> Assets:
        return Assets(None if self.single_file else "../")

    def files(self, key: str) -> str:
        return f"{self.base}/{key}/"


def write_cell(result: CellResult, row: Row, build: Build) -> list[str]:
    """Write <out>/cells/<key>.{html,json} and the pictures asked for. Returns the names of the files."""
    view = cell_view(result, cache=build.cache, files=build.files(result.key), configuration=build.configurations.get(result.key))
    folder = build.out / "cells"
    pictures = _pictures(view, build, folder)
    title = {"pngs": pictures, "bad": view.bad_range, "bisect": bisect_command(build.root, result, view.bad_range)}
    text, curves = _page(view, build, title)
    (folder / f"{result.key}.html").write_text(text, encoding="utf-8")
    (folder / f"{result.key}.json").write_bytes(_record(view, row, curves))
    return [f"{result.key}.html", f"{result.key}.json", *pictures.values()]


def _page(view: CellView, build: Build, extra: dict[str, Any]) -> tuple[str, Curves]:
    """(HTML, curves)."""
    fixed = {"now": build.now.isoformat(timespec="seconds"), "state_marks": STATE_MARKS, "reasons_shown": REASONS_SHOWN, **extra}
    return fitted(view.charts, lambda curves: render("cell.html", build.assets, view=view, curves=curves, **fixed))


def _pictures(view: CellView, build: Build, folder: Path) -> dict[str, str]:
    """Figure id -> file name."""
    from reports.page.figure import write_all, write_summary

    if build.png == "none" or view.reward is None:
        return {}
    title = f"{view.result.id}: {view.result.title}"
    summary = f"{view.result.key}.png"
    write_summary(folder / summary, title, view.charts, view.comparisons)
    return {"summary": summary, **(write_all(folder, view.result.key, view.result.id, view.charts) if build.png == "all" else {})}


def _record(view: CellView, row: Row, curves: Curves) -> bytes:
    """The page as data: the matrix's row, every verdict in brief, curves as drawn, and the latest verdict as its file says."""
    file = view.result.verdict_file
    bad = view.bad_range
    value = {
        "schema_version": 1,
        **msgspec.structs.asdict(row),
        "history": [
            {"time": head.created, "outcome": head.outcome, "file": head.file, "commits": head.commits, "dirty": head.dirty} for head in view.result.history
        ],
        "bad_range": None if bad is None else {"good": bad.before, "bad": bad.after, "text": bad.text()},
        "configuration": view.configuration,
        "provenance": [{"what": what, "candidates": ours, "baseline": theirs, "differs": differs} for what, ours, theirs, differs in view.provenance],
        "links": [{"what": link.what, "text": link.text, "address": link.address} for link in view.links],
        "curves": msgspec.Raw(curves.json),
        "verdict": msgspec.Raw(file.read_bytes()) if file is not None and view.verdict is not None else None,
    }
    return msgspec.json.encode(value) + b"\n"


def bisect_command(root: Path, result: CellResult, bad: BadRange | None) -> str:
    return f"python -m reports bisect {shlex.quote(str(root))} {shlex.quote(result.id)}" if bad else ""


Traces = dict[str, tuple[Signature, str]]  # run -> its files' stat and the hash of their content


def fingerprint(result: CellResult, row: Row, build: Build, code: str, traces: Traces) -> str:
    """Hash of all that a cell's page shows: its row but for its age, every verdict, the content of its runs, its baseline, and what draws it.

    traces: of the last build. A run whose files' stat is as it was then is not read again; `traces` is brought up to date.
    """
    digest = xxhash.xxh3_128(code.encode())
    digest.update(msgspec.json.encode(msgspec.structs.replace(row, age_s=None)))
    for head in result.history:
        digest.update(f"{head.file}\0{head.content}\0".encode())
    for run in result.runs:
        digest.update(f"{run.name}\0{_content(run, traces)}".encode())
    if result.baseline is not None and (file := result.baseline / "baseline.json").is_file():
        digest.update(file.read_bytes())
    digest.update(repr((build.png, build.single_file, build.files(result.key), build.configurations.get(result.key))).encode())
    return digest.hexdigest()


SHOWN = ("manifest.json", "runner.json", "metrics.jsonl", "events.jsonl", "config.yaml", "samples")


def _content(run: Path, traces: Traces) -> str:
    signature = signature_of(str(run / name) for name in SHOWN)
    known = traces.get(str(run))
    if known is None or known[0] != signature:
        known = traces[str(run)] = (signature, content_hash(signature))
    return known[1] + ("log" if (run / "stdout.log").is_file() else "")
