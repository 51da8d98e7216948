"""Two or more runs over each other: the everyday tool. Same curves as a cell's page, no judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from matrix.rule import JudgeRule
from reports.errors import ReportError
from reports.metrics import REWARD
from reports.model import Run
from reports.page.charts import Chart, Side, chart, panels, reward_chart
from reports.page.payload import fitted
from reports.page.provenance import folder_address, links, provenance
from reports.page.render import render
from reports.page.samples import read_samples
from reports.readers import read_runs
from reports.readers.base import Reading

RUNS_WITH_SAMPLES = 4


def compare_paths(paths: Sequence[Path | str], out: Path, how: Reading | str | None = None, metric: str | None = None, *, png: bool = True) -> Path:
    """Write the comparison of runs given by path; a file that holds several gives them all. Raises ReportError for fewer than two and for unreadable ones."""
    runs = read_runs(paths, how)
    if len(runs) < 2:
        raise ReportError("compare needs two or more runs")
    empty = next((run for run in runs if not run.curves), None)
    if empty is not None:
        raise ReportError(f"{empty.path}: {empty.notes[0].text if empty.notes else 'holds no curve'}")
    shared = [name for name in runs[0].curves if all(name in run.curves for run in runs)]
    if metric is not None and metric not in shared:
        raise ReportError(f"--metric {metric}: not in every run; they share {', '.join(shared) or 'none'}")
    if not shared:
        have = "; ".join(f"{run.name} has {', '.join(list(run.curves)[:6])}" for run in runs)
        raise ReportError(f"the runs share no metric: {have}; --name OURS=THEIRS maps one")
    named = _distinct(runs)
    title = " against ".join(named) if len(named) <= 4 else f"{len(named)} runs"
    return write_comparison({name: [run] for name, run in named.items()}, out, metric or (REWARD if REWARD in shared else shared[0]), title, png=png)


def _distinct(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by a name that no other has: the folder's, with as much of the path before it as tells them apart."""
    names = [run.name for run in runs]
    depth = 1
    while len(set(names)) < len(names) and depth < 4:
        depth += 1
        names = ["/".join(run.path.parts[-depth:]) + (f"#{run.part}" if run.part else "") for run in runs]
    counted: dict[str, Run] = {}
    for name, run in zip(names, runs):
        number = 1
        while (label := name if number == 1 else f"{name} ({number})") in counted:
            number += 1
        counted[label] = run
    return counted


def write_comparison(groups: Mapping[str, Sequence[Run]], out: Path, metric: str, title: str, rule: JudgeRule | None = None, *, png: bool = True) -> Path:
    """Write index.html (a page of its own, nothing beside it is needed), index.json, and with `png` one picture of all that matters and one a figure.

    The first of two groups with several runs is drawn as a baseline (band), all other runs as lines of their own.
    """
    out.mkdir(parents=True, exist_ok=True)
    names = list(groups)
    has_base = len(groups) == 2 and len(groups[names[0]]) > 1
    base = Side(groups[names[0]] if has_base else [])
    own = [(name, run) for name in names[1 if has_base else 0 :] for run in groups[name]]
    runs = Side([run for _, run in own])
    labels = [name if len(groups[name]) == 1 else run.name for name, run in own]
    charts = [_renamed(one, labels) for one in _charts(runs, base, rule, metric)]
    everyone = [*base.runs, *runs.runs]
    index = out / "index.html"
    values: dict[str, Any] = {
        "title": title,
        "charts": charts,
        "names": labels,
        "base_name": names[0],
        "rows": _rows([*((run.name, run) for run in base.runs), *zip(labels, runs.runs)], metric),
        "metric": metric,
        "provenance": provenance(runs.runs, base.runs, None),
        "has_base": has_base,
        "samples": [(run.name, found) for run in runs.runs[:RUNS_WITH_SAMPLES] if (found := read_samples(run.path))],
        "notes": [(run.name, note) for run in everyone for note in run.notes],
        "configuration": configuration(labels, runs.runs),
        "links": [link for run in runs.runs[:RUNS_WITH_SAMPLES] for link in links([run], folder_address(index, run.path.parent))],
        "now": datetime.now(UTC).isoformat(timespec="seconds"),
        "pngs": _pictures(out, title, charts) if png else {},
    }
    text, curves = fitted(charts, lambda curves: render("compare.html", **values, curves=curves))
    index.write_text(text, encoding="utf-8")
    record = {
        "schema_version": 1,
        "title": title,
        "metric": metric,
        "runs": [_run_record(name, run) for name, run in zip(labels, runs.runs)],
        "curves": msgspec.Raw(curves.json),
    }
    (out / "index.json").write_bytes(msgspec.json.encode(record) + b"\n")
    return index


def _charts(runs: Side, base: Side, rule: JudgeRule | None, metric: str) -> list[Chart]:
    everything = sorted({name for run in runs.runs for name in run.curves})
    main = reward_chart(runs, base, rule, metric) if metric == REWARD or rule else chart(metric, runs, base, every_baseline_run=True)
    return [main, *(one for one in panels(runs, base, rule, also=everything) if one.metric != metric)]


def _renamed(one: Chart, labels: Sequence[str]) -> Chart:
    """Lines called as the page calls their runs."""
    from dataclasses import replace

    return replace(one, series=tuple(replace(series, name=labels[series.group - 1]) if series.group else series for series in one.series))


def _pictures(out: Path, title: str, charts: Sequence[Chart]) -> dict[str, str]:
    from reports.page.figure import write_all, write_summary

    write_summary(out / "index.png", title, charts, [])
    return {"summary": "index.png", **write_all(out, "index", title, charts)}


def _run_record(name: str, run: Run) -> dict[str, Any]:
    return {"name": name, "path": str(run.path), "format": run.format, "seed": run.seed, "sha": run.sha, "labels": run.labels, "steps": len(run.steps)}


def _rows(runs: Sequence[tuple[str, Run]], metric: str) -> list[tuple[str, str, str, str, str]]:
    """(run, steps, first tenth, last quarter, all) of the metric, over the steps each run has."""
    rows = []
    for name, run in runs:
        values = run.curves[metric].values if metric in run.curves else np.empty(0)
        if not len(values):
            rows.append((name, str(len(run.steps)), "–", "–", "–"))
            continue
        parts = (values[: max(len(values) // 10, 1)], values[-max(len(values) // 4, 1) :], values)
        first, last, whole = (f"{float(part.mean()):.4f}" for part in parts)
        rows.append((name, f"{len(run.steps)} ({run.steps[0]}–{run.steps[-1]})", first, last, whole))
    return rows


@dataclass(frozen=True)
class Configuration:
    """Keys whose values differ between the runs that keep their configuration."""

    names: list[str]
    rows: list[tuple[str, list[str]]]


def configuration(names: Sequence[str], runs: Sequence[Run]) -> Configuration | None:
    """None where fewer than two runs have a config.yaml."""
    from matrix.fragments import leaves
    from reports.page.runs import config_of

    found = [(name, dict(leaves(config))) for name, run in zip(names, runs) if (config := config_of(run)) is not None]
    if len(found) < 2:
        return None
    keys = sorted({key for _, values in found for key in values})
    rows = []
    for key in keys:
        values = [_shown(one[key]) if key in one else "not set" for _, one in found]
        if len(set(values)) > 1:
            rows.append((".".join(map(str, key)), values))
    return Configuration([name for name, _ in found], rows) if rows else None


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
