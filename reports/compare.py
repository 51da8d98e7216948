"""Two or more runs over each other: the everyday tool. Same charts as a cell's page, no judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from matrix.rule import JudgeRule
from reports.errors import ReportError
from reports.metrics import REWARD
from reports.model import Run
from reports.page import svg
from reports.page.charts import Chart, chart, panels, reward_chart
from reports.page.figure import write_png
from reports.page.render import render
from reports.page.samples import read_samples
from reports.page.view import drawn, provenance
from reports.readers import read_run


def compare_paths(paths: Sequence[Path], out: Path, format: str | None = None) -> Path:
    """Write the comparison of runs given by path. Raises ReportError for fewer than two and for unreadable ones."""
    if len(paths) < 2:
        raise ReportError("compare needs two or more runs")
    runs = [read_run(path, format) for path in paths]
    shared = [name for name in runs[0].curves if all(name in run.curves for run in runs)]
    if not shared:
        raise ReportError(f"the runs share no metric: {'; '.join(f'{run.name} has {len(run.curves)}' for run in runs)}")
    return write_comparison({run.path.name: [run] for run in runs}, out, REWARD if REWARD in shared else shared[0], " against ".join(run.name for run in runs))


def write_comparison(groups: Mapping[str, Sequence[Run]], out: Path, metric: str, title: str, rule: JudgeRule | None = None) -> Path:
    """Write index.html and index.png. The first of two groups with several runs is drawn as a baseline (band), all other runs as lines of their own."""
    out.mkdir(parents=True, exist_ok=True)
    names = list(groups)
    has_base = len(groups) == 2 and len(groups[names[0]]) > 1
    base = list(groups[names[0]]) if has_base else []
    runs = [run for name in names[1 if has_base else 0 :] for run in groups[name]]
    everything = sorted({name for run in runs for name in run.curves})
    main = reward_chart(runs, base, rule, metric) if metric == REWARD or rule else chart(metric, runs, base, every_baseline_run=True)
    others = [one for one in panels(runs, base, rule, also=everything) if one.metric != metric]
    index = out / "index.html"
    page = render(
        "compare.html",
        title=title,
        main=drawn(main, svg.WIDE, svg.NARROW),
        panels=[drawn(one, svg.PANEL, svg.PANEL) for one in others],
        names=[run.name for run in runs],
        base_name=names[0],
        rows=_rows([*base, *runs], metric),
        metric=metric,
        provenance=provenance(runs, base, None),
        has_base=has_base,
        samples=[(run.name, found) for run in runs if (found := read_samples(run.path))],
        notes=[(run.name, note) for run in (*base, *runs) for note in run.notes],
        now=datetime.now(UTC),
    )
    index.write_text(page, encoding="utf-8")
    write_png(out / "index.png", title, [main, *_gap(others)], [])
    return index


def _gap(charts: Sequence[Chart]) -> list[Chart]:
    from reports.metrics import GAP_MEAN

    return [one for one in charts if one.metric == GAP_MEAN]


def _rows(runs: Sequence[Run], metric: str) -> list[tuple[str, str, str, str, str]]:
    """(run, steps, first tenth, last quarter, all) of the metric, over the steps each run has."""
    rows = []
    for run in runs:
        values = run.curves[metric].values if metric in run.curves else np.empty(0)
        if not len(values):
            rows.append((run.name, str(len(run.steps)), "–", "–", "–"))
            continue
        parts = (values[: max(len(values) // 10, 1)], values[-max(len(values) // 4, 1) :], values)
        first, last, whole = (f"{float(part.mean()):.4f}" for part in parts)
        rows.append((run.name, f"{len(run.steps)} ({run.steps[0]}–{run.steps[-1]})", first, last, whole))
    return rows
