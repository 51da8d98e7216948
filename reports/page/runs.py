"""The runs a verdict is about, found again: where they lie now, or as the verdict kept them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from reports.errors import ReportError
from reports.model import Curve, Run
from reports.page.charts import Side
from reports.readers import read_or_note
from reports.readers.base import Reading
from reports.verdict import Points, RunRef, Verdict


def of_refs(refs: Sequence[RunRef], found: Sequence[Path], metric: str, cache: Path | None) -> list[Run]:
    """Each run a verdict names, from where it lies: its path, a run of that name in the results, or the verdict itself."""
    by_name = {path.name: path for path in found}
    return [_run(ref, [by_name.get(Path(ref.path).name), Path(ref.path)], metric, cache) for ref in refs]


def _run(ref: RunRef, places: Sequence[Path | None], metric: str, cache: Path | None) -> Run:
    for place in dict.fromkeys(places):
        if place is not None and place.exists():
            run = read_or_note(place, Reading(cache=cache))
            if run.sha == ref.sha:
                return run
    curve = _curve(ref.curve)
    curves = {name: _curve(points if points.steps else Points(steps=ref.curve.steps, values=points.values)) for name, points in ref.curves.items()}
    curves = {name: one for name, one in {**curves, metric: curve}.items() if len(one.steps) == len(one.values) and len(one.steps)}
    manifest = {**ref.provenance, "seed": ref.seed, "labels": {"science_hash": ref.science_hash}}
    return Run(Path(ref.path), ref.format, curve.steps, curves, manifest=manifest, content_hash=ref.sha)


def _curve(points: Points) -> Curve:
    return Curve(np.array(points.steps, dtype=np.int64), np.array(points.values, dtype=np.float64))


def baseline_of(verdict: Verdict | None, folder: Path | None, cache: Path | None) -> Side:
    """The baseline a verdict was judged against, whole where it still lies in its folder; what the verdict kept of it otherwise."""
    from reports.baseline import FILE

    folders = [Path(verdict.baseline_path)] if verdict and verdict.baseline_path else []
    folders += [folder] if folder else []
    wanted = {ref.sha for ref in verdict.baseline} if verdict else None
    for place in dict.fromkeys(folders):
        if (place / FILE).is_file():
            side = _folder(place, (place / FILE).stat().st_mtime_ns, cache)
            if side is not None and (wanted is None or {run.sha for run in side.runs} == wanted):
                return side
    return Side(of_refs(verdict.baseline, (), verdict.rule.metric, cache) if verdict else [])


@lru_cache(maxsize=32)
def _folder(place: Path, changed: int, cache: Path | None) -> Side | None:
    """None where it was damaged: what the verdict saw of it is drawn instead. `changed` makes another entry of a folder that was written since."""
    from reports.baseline import read_folder

    try:
        return Side(read_folder(place, cache))
    except ReportError:
        return None


def config_of(run: Run) -> dict[str, Any] | None:
    """A run's resolved configuration; None for one that keeps none that can be read."""
    import yaml

    file = run.path / "config.yaml"
    if not file.is_file():
        return None
    try:
        value = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    return value if isinstance(value, dict) else None
