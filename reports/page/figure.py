"""The same charts as PNG, for where no page can be shown (mail, chat, a pull request)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reports.metrics import GAP_MEAN
from reports.page.charts import Chart
from reports.page.forest import REACH, bar
from reports.verdict import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8B6F00", "#56B4E9")
DASHES: tuple[object, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
STATE_COLOURS = {"inside": "#1a7f37", "outside": "#b42318", "between": "#9a6700"}
DPI = 110


def write_all(folder: Path, stem: str, title: str, charts: Sequence[Chart]) -> dict[str, str]:
    """One PNG a chart, <stem>.f0.png and so on. Returns figure id -> file name; charts without a finite value have none."""
    written = {}
    for number, chart in enumerate(charts):
        if chart.drawable:
            name = f"{stem}.f{number}.png"
            figure = _figure(8.0, 3.8, f"{title}: {chart.title}")
            _chart(figure.add_axes((0.08, 0.13, 0.90, 0.72)), chart, titled=False)
            figure.savefig(folder / name, metadata={"Software": None})
            written[f"f{number}"] = name
    return written


def write_summary(path: Path, title: str, charts: Sequence[Chart], comparisons: Sequence[Comparison]) -> None:
    """Reward over its baseline, the differences in units of δ, and the log-prob gap where there is one, in one picture."""
    gap = next((chart for chart in charts[1:] if chart.metric == GAP_MEAN), None)
    rows = 2 if comparisons or gap else 1
    figure = _figure(11, 4.2 * rows, title)
    top, low = (0.57, 0.07) if rows == 2 else (0.13, 0.0)
    tall = 0.35 if rows == 2 else 0.72
    if charts:
        _chart(figure.add_axes((0.06, top, 0.92, tall)), charts[0])
    if comparisons:
        _forest(figure.add_axes((0.14, low, 0.34 if gap else 0.84, 0.36)), comparisons)
    if gap:
        _chart(figure.add_axes((0.57 if comparisons else 0.06, low, 0.41 if comparisons else 0.92, 0.36)), gap)
    figure.savefig(path, metadata={"Software": None})


def _figure(width: float, height: float, title: str) -> Figure:
    """Without pyplot: nothing of it is global, and nothing has to be closed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as New

    figure = New(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, y=0.985, ha="left", parse_math=False)
    return figure


def _chart(axes: Axes, chart: Chart, titled: bool = True) -> None:
    for window in chart.windows:
        axes.axvspan(window.start - 0.5, window.end + 0.5, color="#000000", alpha=0.05, lw=0)
    if chart.band:
        name = f"baseline, mean ± 2 sd of {chart.band.runs} runs"
        axes.fill_between(chart.band.steps, chart.band.low, chart.band.high, color="#8a8f98", alpha=0.25, lw=0, label=name)
        axes.plot(chart.band.steps, chart.band.mean, color="#5f646d", lw=1.2)
    for series in chart.series:
        steps, values = series.drawn()
        values = np.where(np.isfinite(values) & ((values > 0) if chart.log else True), values, np.nan)
        if series.group == 0:
            axes.plot(steps, values, color="#8a8f98", lw=0.6, alpha=0.7)
        else:
            axes.plot(steps, values, color=COLOURS[(series.group - 1) % 6], ls=DASHES[(series.group - 1) % 6], lw=1.8, label=series.name.lstrip("_") or "run")
    if chart.log:
        axes.set_yscale("log")
    if chart.limit:
        axes.axhline(chart.limit[1], color="#b42318", lw=1, ls="--", label=f"{chart.limit[0]} {chart.limit[1]:g}")
    if titled:
        axes.set_title(chart.title, fontsize=10, loc="left")
    axes.set_xlabel("step", fontsize=9)
    _tidy(axes)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, frameon=False, loc="lower right" if chart.metric.endswith(("reward_mean", "score")) else "upper right")


def _forest(axes: Axes, comparisons: Sequence[Comparison]) -> None:
    for row, comparison in enumerate(reversed(comparisons)):
        shape, colour = bar(comparison), STATE_COLOURS.get(comparison.state, "#5f646d")
        low, high = (-1.0 if comparison.margin_low is not None else -REACH), (1.0 if comparison.margin_high is not None else REACH)
        axes.barh(row, high - low, left=low, height=0.8, color="#1a7f37", alpha=0.08, lw=0)
        at = float(np.clip(shape.at, -REACH, REACH))
        if shape.low is not None and shape.high is not None:
            axes.plot(np.clip([shape.low, shape.high], -REACH, REACH), [row, row], color=colour, lw=2.5, solid_capstyle="butt")
        axes.plot([at], [row], marker="o" if abs(shape.at) <= REACH else "<" if shape.at < 0 else ">", color=colour, ms=7)
    names = [
        f"{c.title}\n{c.difference:.2f}×, {c.state}" if c.scale == "ratio" else f"{c.title}\n{c.difference:+.4f}, {c.state}" for c in reversed(comparisons)
    ]
    axes.set_yticks(range(len(comparisons)), names, fontsize=8)
    axes.set_xlim(-REACH, REACH)
    axes.set_xticks([-2, -1, 0, 1, 2], ["−2 δ", "−δ", "0", "+δ", "+2 δ"], fontsize=8)
    axes.axvline(0, color="#5f646d", lw=0.8)
    axes.set_title("difference to the baseline, with its interval, in units of δ", fontsize=10, loc="left")
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
