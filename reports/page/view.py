"""What a template is given of one cell: charts drawn, rows in order, texts ready. No judgement is made here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from reports.checks.labels import short
from reports.errors import ReportError
from reports.model import Curve, Run
from reports.page import forest, svg
from reports.page.charts import Chart, panels, reward_chart
from reports.page.samples import StepSamples, read_samples
from reports.readers import read_or_note
from reports.results import CellResult, Judgement, age
from reports.show import MARKS, cells
from reports.verdict import RunRef, Verdict


@dataclass(frozen=True)
class Drawn:
    """A chart in the widths a page shows it at."""

    chart: Chart
    wide: Markup
    narrow: Markup
    data: Markup

    @property
    def title(self) -> str:
        return self.chart.title


@dataclass(frozen=True)
class CellView:
    """Everything a cell's page shows."""

    result: CellResult
    verdict: Verdict | None
    reward: Drawn | None
    panels: list[Drawn]
    spark: Markup
    forest_wide: Markup
    forest_narrow: Markup
    statistics: list[tuple[str, ...]]
    samples: list[tuple[str, list[StepSamples]]]
    provenance: list[tuple[str, str, str]]
    candidates: list[str]
    charts: list[Chart]

    @property
    def mark(self) -> str:
        return MARKS[self.result.outcome]

    @property
    def css(self) -> str:
        return str(self.result.outcome).lower().replace("_", "-")

    @property
    def age(self) -> str:
        return age(self.result.latest.time) if self.result.latest else "–"

    @property
    def history(self) -> list[tuple[str, Judgement]]:
        """The latest verdicts, newest first, each with its mark."""
        return [(MARKS[judgement.outcome], judgement) for judgement in reversed(self.result.history[-12:])]


def cell_view(result: CellResult) -> CellView:
    """Read the cell's runs and baseline and draw them. Runs that are gone are drawn from the curve the verdict kept."""
    verdict = result.verdict
    candidates = _runs(verdict.candidates, result.runs, verdict.rule.metric) if verdict else [read_or_note(path) for path in result.runs]
    baseline = _baseline(result)
    rule, metric = (verdict.rule, verdict.rule.metric) if verdict else (None, result.metric)
    main = reward_chart(candidates, baseline, rule, metric or "rollout/reward_mean")
    more = panels(candidates, baseline, rule)
    comparisons = verdict.comparisons if verdict else []
    return CellView(
        result=result,
        verdict=verdict,
        reward=drawn(main, svg.WIDE, svg.NARROW) if main.series else None,
        panels=[drawn(chart, svg.PANEL, svg.PANEL) for chart in more],
        spark=Markup(svg.spark(main)),
        forest_wide=Markup(forest.draw(comparisons, 920, "wide")),
        forest_narrow=Markup(forest.draw(comparisons, 370, "narrow")),
        statistics=[(*cells(c), str(c.n), str(c.B)) for c in comparisons],
        samples=[(run.name, found) for run in candidates if (found := read_samples(run.path))][:1],
        provenance=provenance(candidates, baseline, verdict),
        candidates=[run.name for run in candidates],
        charts=[main, *more],
    )


def drawn(chart: Chart, wide: svg.Size, narrow: svg.Size) -> Drawn:
    two = wide is not narrow
    return Drawn(
        chart,
        Markup(svg.draw(chart, wide, "wide" if two else "")),
        Markup(svg.draw(chart, narrow, "narrow")) if two else Markup(),
        Markup(svg.hover_data(chart)),
    )


def _runs(refs: Sequence[RunRef], found: Sequence[Path], metric: str) -> list[Run]:
    """Each run a verdict names, from where it lies: its path, a run of that name in the results, or the verdict itself."""
    by_name = {path.name: path for path in found}
    return [_run(ref, [Path(ref.path), by_name.get(Path(ref.path).name)], metric) for ref in refs]


def _run(ref: RunRef, places: Sequence[Path | None], metric: str) -> Run:
    for place in places:
        if place is not None and place.exists():
            run = read_or_note(place)
            if run.sha == ref.sha:
                return run
    curve = Curve(np.array(ref.curve.steps, dtype=np.int64), np.array(ref.curve.values, dtype=np.float64))
    manifest = {**ref.provenance, "seed": ref.seed, "labels": {"science_hash": ref.science_hash}}
    return Run(Path(ref.path), ref.format, curve.steps, {metric: curve} if len(curve.steps) else {}, manifest=manifest, content_hash=ref.sha)


def _baseline(result: CellResult) -> list[Run]:
    from reports.baseline import FILE, read_folder

    verdict = result.verdict
    folders = [Path(verdict.baseline_path)] if verdict and verdict.baseline_path else []
    folders += [result.baseline] if result.baseline else []
    wanted = {ref.sha for ref in verdict.baseline} if verdict else None
    for folder in folders:
        if (folder / FILE).is_file():
            try:
                runs = read_folder(folder)
            except ReportError:
                continue  # damaged since: what the verdict saw is drawn instead
            if wanted is None or {run.sha for run in runs} == wanted:
                return runs
    return _runs(verdict.baseline, (), verdict.rule.metric) if verdict else []


def provenance(candidates: Sequence[Run], baseline: Sequence[Run], verdict: Verdict | None) -> list[tuple[str, str, str]]:
    """(what, candidates, baseline) rows; a value that differs between runs of one side is listed with its differences."""
    rows: list[tuple[str, str, str]] = []
    rows.append(("runs", _names(candidates), _names(baseline)))
    for name, pick in _FACTS:
        ours, theirs = (_each(side, pick) for side in (candidates, baseline))
        if ours or theirs:
            rows.append((name, ours or "not recorded", theirs or ("not recorded" if baseline else "no baseline")))
    if verdict and verdict.baseline_path:
        rows.append(("baseline folder", "", verdict.baseline_path))
    rows.append(("content hashes", _each(candidates, lambda run: run.sha[:12]), _each(baseline, lambda run: run.sha[:12])))
    return rows


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
        return f"{devices.get('count', '?')} × {names}" if names else str(devices)
    return "" if devices is None else ", ".join(map(str, devices)) if isinstance(devices, list) else str(devices)


def _missing(run: Run) -> str:
    devices: Any = run.manifest.get("devices")
    missing = devices.get("missing_capabilities") if isinstance(devices, dict) else None
    return ", ".join(missing) if missing else ""


_FACTS = (
    ("science hash", lambda run: "" if run.science_hash is None else short(run.science_hash)),
    ("commit", _commit),
    ("host", _host),
    ("devices", _devices),
    ("missing capabilities", _missing),
    ("versions", _versions),
    ("configuration hash", lambda run: str(run.manifest.get("config_hash") or "")[:12]),
)


def _names(runs: Sequence[Run]) -> str:
    names = [run.name for run in runs]
    return ", ".join(names) if len(names) <= 6 else f"{len(names)}: {', '.join(names[:3])}, … {names[-1]}"


def _each(runs: Sequence[Run], pick: Any) -> str:
    values = list(dict.fromkeys(value for run in runs if (value := pick(run))))
    return "; ".join(values) if len(values) <= 6 else f"{'; '.join(values[:5])}; … ({len(values)} in all)"
