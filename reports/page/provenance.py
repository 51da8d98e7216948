"""Where runs come from, both sides beside each other, and where to read on: build, log, artifact, tracker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.checks.labels import short
from reports.model import Run
from reports.verdict import Verdict

Row = tuple[str, str, str]


def provenance(candidates: Sequence[Run], baseline: Sequence[Run], verdict: Verdict | None) -> list[Row]:
    """(what, candidates, baseline) rows; a value that differs between runs of one side is listed with its differences."""
    rows: list[Row] = [("runs", _names(candidates), _names(baseline))]
    for name, pick in _FACTS:
        ours, theirs = (_each(side, pick) for side in (candidates, baseline))
        if ours or theirs:
            rows.append((name, ours or "not recorded", theirs or ("not recorded" if baseline else "no baseline")))
    if verdict and verdict.baseline_path:
        rows.append(("baseline folder", "", verdict.baseline_path))
    rows.append(("content hashes", _each(candidates, lambda run: run.sha[:12]), _each(baseline, lambda run: run.sha[:12])))
    return rows


def differing(rows: Sequence[Row]) -> set[str]:
    """Names of rows whose two sides are both known and not the same, where sameness is what one would wish for."""
    return {name for name, ours, theirs in rows if name in COMPARED and ours != theirs and "not recorded" not in (ours, theirs) and theirs != "no baseline"}


COMPARED = ("science hash", "commit", "host", "devices", "versions", "image", "missing capabilities")


def _host(run: Run) -> str:
    host = run.manifest.get("host")
    if isinstance(host, dict):
        return ", ".join(str(host[key]) for key in ("hostname", "machine", "system") if host.get(key)) + (f", {host['cpus']} CPUs" if host.get("cpus") else "")
    return str(host or "")


def _commit(run: Run) -> str:
    commit = run.manifest.get("commit")
    return "" if not commit else f"{str(commit)[:12]}{' with local changes' if run.manifest.get('dirty') else ''}"


def _versions(run: Run) -> str:
    versions = run.manifest.get("versions")
    return ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, dict) else ""


def _devices(run: Run) -> str:
    """`8 × CPU` for vime's {count, resource}; whatever else a manifest says as it says it."""
    devices: Any = run.manifest.get("devices")
    if isinstance(devices, dict):
        names = devices.get("names") or devices.get("name") or devices.get("resource")
        names = ", ".join(dict.fromkeys(map(str, names))) if isinstance(names, list) else names
        return f"{devices.get('count', '?')} × {names}" if names else str(devices)
    return "" if devices is None else ", ".join(map(str, devices)) if isinstance(devices, list) else str(devices)


def _missing(run: Run) -> str:
    devices: Any = run.manifest.get("devices")
    missing = devices.get("missing_capabilities") if isinstance(devices, dict) else None
    return ", ".join(missing) if missing else ""


def _text(name: str, longest: int = 200) -> Callable[[Run], str]:
    def pick(run: Run) -> str:
        value = run.manifest.get(name)
        return "" if value is None else str(value)[:longest]

    return pick


_FACTS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("science hash", lambda run: "" if run.science_hash is None else short(run.science_hash)),
    ("commit", _commit),
    ("host", _host),
    ("devices", _devices),
    ("missing capabilities", _missing),
    ("image", _text("image")),
    ("versions", _versions),
    ("configuration hash", _text("config_hash", 12)),
    ("source", _text("source")),
)


def _names(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs]
    return ", ".join(names) if len(names) <= 6 else f"{len(names)}: {', '.join(names[:3])}, … {names[-1]}"


def _each(runs: Sequence[Run], pick: Callable[[Run], str]) -> str:
    values = list(dict.fromkeys(value for run in runs if (value := pick(run))))
    return "; ".join(values) if len(values) <= 6 else f"{'; '.join(values[:5])}; … ({len(values)} in all)"


@dataclass(frozen=True)
class Link:
    """Where to read on. `address` is None for a place that has no address: it is shown as text."""

    what: str
    text: str
    address: str | None


FILES = (("log", "stdout.log"), ("run record", "runner.json"), ("configuration", "config.yaml"), ("events", "events.jsonl"), ("metrics", "metrics.jsonl"))


def links(runs: Sequence[Run], base: str | None) -> list[Link]:
    """What runs say of their build and tracker, then their files. `base`: address of the folder that holds the run directories; None: no links to files.

    Build and tracker stand in a run's manifest, as `links: {build: https://…, tracker: https://…}`, or in runner.json under the same name.
    """
    found = []
    for run in runs:
        told = {**_told(run.manifest), **_told(run.runner)}
        found += [Link(str(what), f"{what} of {run.name}", safe(str(address))) for what, address in told.items()]
        if base is not None and run.path.is_dir():
            folder = f"{base}{run.path.name}"
            found += [Link(what, f"{what} of {run.name}", f"{folder}/{name}") for what, name in FILES if (run.path / name).is_file()]
    return found


def _told(record: dict[str, Any]) -> dict[str, Any]:
    value = record.get("links")
    return value if isinstance(value, dict) else {}


def safe(address: str) -> str | None:
    """An address that a page may link to: http, https, or a relative path. A manifest is not trusted to hold no script."""
    from urllib.parse import urlsplit

    return address if urlsplit(address).scheme in ("http", "https") else None


def folder_address(page: Path, folder: Path) -> str:
    """Relative address of `folder` from the folder of `page`, with a slash at its end."""
    import os
    from urllib.parse import quote

    return quote(Path(os.path.relpath(folder.resolve(), page.resolve().parent)).as_posix()) + "/"
