"""The same charts as a PNG, for where no page can be shown (mail, chat, a pull request)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reports.page.charts import Chart
from reports.page.forest import REACH, bar
from reports.verdict import Comparison

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8B6F00", "#56B4E9")
DASHES: tuple[object, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
STATE_COLOURS = {"inside": "#1a7f37", "outside": "#b42318", "between": "#9a6700"}


def write_png(path: Path, title: str, charts: list[Chart], comparisons: list[Comparison]) -> None:
    """Reward over its baseline, the differences in units of δ, and the log-prob gap where there is one."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = 2 if comparisons or len(charts) > 1 else 1
    figure = plt.figure(figsize=(11, 4.2 * rows), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left", wrap=True)
    grid = figure.add_gridspec(rows, 2)
    if charts:
        _chart(figure.add_subplot(grid[0, :]), charts[0])
    if comparisons:
        _forest(figure.add_subplot(grid[1, 0] if len(charts) > 1 else grid[1, :]), comparisons)
    if len(charts) > 1:
        _chart(figure.add_subplot(grid[1, 1] if comparisons else grid[1, :]), charts[1])
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def _chart(axes, chart: Chart) -> None:  # type: ignore[no-untyped-def]
    for window in chart.windows:
        axes.axvspan(window.start - 0.5, window.end + 0.5, color="#000000", alpha=0.05, lw=0)
    if chart.band:
        axes.fill_between(
            chart.band.steps, chart.band.low, chart.band.high, color="#8a8f98", alpha=0.25, lw=0, label=f"baseline, mean ± 2 sd of {chart.band.runs} runs"
        )
        axes.plot(chart.band.steps, chart.band.mean, color="#5f646d", lw=1.2)
    for series in chart.series:
        steps, values = series.drawn()
        values = np.where(np.isfinite(values) & ((values > 0) if chart.log else True), values, np.nan)
        if series.group == 0:
            axes.plot(steps, values, color="#8a8f98", lw=0.6, alpha=0.7)
        else:
            axes.plot(steps, values, color=COLOURS[(series.group - 1) % 6], ls=DASHES[(series.group - 1) % 6], lw=1.8, label=series.name)
    if chart.log:
        axes.set_yscale("log")
    if chart.limit:
        axes.axhline(chart.limit[1], color="#b42318", lw=1, ls="--", label=f"{chart.limit[0]} {chart.limit[1]:g}")
    axes.set_title(chart.title, fontsize=10, loc="left")
    axes.set_xlabel("step", fontsize=9)
    _tidy(axes)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, frameon=False, loc="best")


def _forest(axes, comparisons: list[Comparison]) -> None:  # type: ignore[no-untyped-def]
    for row, comparison in enumerate(reversed(comparisons)):
        shape, colour = bar(comparison), STATE_COLOURS.get(comparison.state, "#5f646d")
        low, high = (-1.0 if comparison.margin_low is not None else -REACH), (1.0 if comparison.margin_high is not None else REACH)
        axes.barh(row, high - low, left=low, height=0.8, color="#1a7f37", alpha=0.08, lw=0)
        at = float(np.clip(shape.at, -REACH, REACH))
        if shape.low is not None and shape.high is not None:
            axes.plot(np.clip([shape.low, shape.high], -REACH, REACH), [row, row], color=colour, lw=2.5, solid_capstyle="butt")
        axes.plot([at], [row], marker="o" if abs(shape.at) <= REACH else "<" if shape.at < 0 else ">", color=colour, ms=7)
    axes.set_yticks(
        range(len(comparisons)),
        [f"{c.title}\n{c.difference:.2f}×" if c.scale == "ratio" else f"{c.title}\n{c.difference:+.4f}" for c in reversed(comparisons)],
        fontsize=8,
    )
    axes.set_xlim(-REACH, REACH)
    axes.set_xticks([-2, -1, 0, 1, 2], ["−2 δ", "−δ", "0", "+δ", "+2 δ"], fontsize=8)
    axes.axvline(0, color="#5f646d", lw=0.8)
    axes.set_title("difference to the baseline, with its interval, in units of δ", fontsize=10, loc="left")
    _tidy(axes)


def _tidy(axes) -> None:  # type: ignore[no-untyped-def]
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
