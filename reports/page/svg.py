"""A chart as inline SVG. Colours come from the page's style sheet (light and dark); lines of candidates differ by dash as well as by colour."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape

import numpy as np

from reports.page.axes import Scale, label, nice_range, ticks
from reports.page.charts import Chart, Series, Window


@dataclass(frozen=True)
class Size:
    """Pixels of a drawing at its natural width; `font` is chosen so that the drawing reads at the width it is shown at."""

    width: int
    height: int
    left: int = 46
    right: int = 12
    top: int = 14
    bottom: int = 26


WIDE, NARROW, PANEL, SPARK = Size(920, 360), Size(370, 290, left=40, right=8), Size(370, 190, left=48, right=8), Size(150, 36, left=1, right=1, top=2, bottom=2)


def draw(chart: Chart, size: Size, css: str = "") -> str:
    """The chart as an <svg> element, or a sentence where nothing can be drawn."""
    extent = chart.extent()
    if extent is None:
        return f'<p class="nothing">no finite value of {escape(chart.metric)} to draw</p>'
    first, last, low, high = extent
    if chart.limit and not chart.log:
        high = max(high, min(chart.limit[1], 2 * high))
    low, high = nice_range(low, high, chart.log)
    x = Scale(first, max(last, first + 1), size.left, size.width - size.right)
    y = Scale(low, high, size.height - size.bottom, size.top, chart.log)
    parts = [_windows(chart.windows, x, size), _grid(x, y, size), _band(chart, x, y), *(_line(series, x, y) for series in _back_to_front(chart))]
    parts += [_limit(chart, y, size), f'<line class="cross" y1="{size.top}" y2="{size.height - size.bottom}" hidden=""/>']
    return (
        f'<svg class="chart {css}" viewBox="0 0 {size.width} {size.height}" role="img" aria-label="{escape(chart.title)} by step" '
        f'data-x="{first:g},{max(last, first + 1):g},{size.left},{size.width - size.right}">{"".join(parts)}</svg>'
    )


def spark(chart: Chart) -> str:
    """A word-sized picture of the curve, for tables."""
    extent = chart.extent()
    if extent is None:
        return ""
    first, last, low, high = extent
    x, y = (
        Scale(first, max(last, first + 1), SPARK.left, SPARK.width - SPARK.right),
        Scale(low, high if high > low else low + 1, SPARK.height - SPARK.bottom, SPARK.top),
    )
    lines = "".join(_line(series, x, y, marks=False) for series in _back_to_front(chart) if series.group or not chart.band)
    return f'<svg class="spark" viewBox="0 0 {SPARK.width} {SPARK.height}" role="img" aria-label="{escape(chart.title)}">{_band(chart, x, y)}{lines}</svg>'


def hover_data(chart: Chart) -> str:
    """JSON the page's script reads to show values under the pointer: steps, and per candidate and for the baseline's mean one list of values."""
    steps = sorted(
        {int(step) for series in chart.candidates for step in series.drawn()[0]}
        | (set(chart.band.steps.tolist()) if chart.band and not chart.candidates else set())
    )
    lines = [{"name": series.name, "group": series.group, "values": _at(steps, series.steps, series.values)} for series in chart.candidates]
    if chart.band:
        lines.append({"name": "baseline mean", "group": 0, "values": _at(steps, chart.band.steps, chart.band.mean)})
    return json.dumps({"steps": steps, "lines": lines}, separators=(",", ":")).replace("</", "<\\/")


def _at(steps: list[int], have: np.ndarray, values: np.ndarray) -> list[float | str | None]:
    known = dict(zip(have.tolist(), values.tolist()))
    return [None if step not in known else float(f"{known[step]:.4g}") if np.isfinite(known[step]) else str(known[step]) for step in steps]


def _back_to_front(chart: Chart) -> list[Series]:
    return sorted(chart.series, key=lambda series: series.group > 0)


def _grid(x: Scale, y: Scale, size: Size) -> str:
    bottom, parts = size.height - size.bottom, []
    for value in ticks(y.low, y.high, y.log, max(4, size.height // 60)):
        at = float(y(value))
        parts.append(f'<line class="grid" x1="{size.left}" x2="{size.width - size.right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{size.left - 6}" y="{at + 4:.1f}" text-anchor="end">{label(value)}</text>')
    for value in ticks(x.low, x.high, False, max(4, size.width // 110)):
        at = float(x(value))
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{label(value)}</text>')
    parts.append(f'<line class="axis" x1="{size.left}" x2="{size.width - size.right}" y1="{bottom}" y2="{bottom}"/>')
    return "".join(parts)


def _windows(windows: tuple[Window, ...], x: Scale, size: Size) -> str:
    parts = []
    for window in windows:
        left, right = max(float(x(window.start - 0.5)), size.left), min(float(x(window.end + 0.5)), size.width - size.right)
        parts.append(f'<rect class="window" x="{left:.1f}" y="{size.top}" width="{max(right - left, 1):.1f}" height="{size.height - size.top - size.bottom}"/>')
        narrow = right - left < 80
        anchor, at = ("start", left + 4) if narrow else ("middle", (left + right) / 2)
        parts.append(f'<text class="window-name" x="{at:.1f}" y="{size.height - size.bottom - 7}" text-anchor="{anchor}">{escape(window.name)}</text>')
    return "".join(parts)


def _band(chart: Chart, x: Scale, y: Scale) -> str:
    if chart.band is None:
        return ""
    low = np.maximum(chart.band.low, y.low) if y.log else chart.band.low
    steps, up, down = x(chart.band.steps), np.clip(y(chart.band.high), y.end, y.start), np.clip(y(low), y.end, y.start)
    points = [f"{a:.1f},{b:.1f}" for a, b in zip(steps, up)] + [f"{a:.1f},{b:.1f}" for a, b in zip(steps[::-1], down[::-1])]
    return f'<polygon class="band" points="{" ".join(points)}"/><path class="mean" d="{_path(chart.band.steps, chart.band.mean, x, y)}"/>'


def _line(series: Series, x: Scale, y: Scale, marks: bool = True) -> str:
    steps, values = series.drawn()
    css = "base" if series.group == 0 else f"cand c{(series.group - 1) % 6 + 1}"
    bad = steps[~np.isfinite(values)][:1] if marks and series.group else ()
    text = "".join(f'<text class="bad-step" x="{float(x(step)):.1f}" y="{y.end + 12:.0f}" text-anchor="middle">✗ NaN at {step}</text>' for step in bad)
    return f'<path class="{css}" d="{_path(steps, values, x, y)}"><title>{escape(series.name)}</title></path>{text}'


def _path(steps: np.ndarray, values: np.ndarray, x: Scale, y: Scale) -> str:
    """Path data with a break wherever a value cannot be drawn."""
    with np.errstate(invalid="ignore"):
        at_x, at_y = x(steps), y(values)
    parts, pen = [], "M"
    for a, b in zip(at_x.tolist(), at_y.tolist()):
        if not np.isfinite(b):
            pen = "M"
            continue
        parts.append(f"{pen}{a:.1f},{b:.1f}")
        pen = "L"
    return "".join(parts)


def _limit(chart: Chart, y: Scale, size: Size) -> str:
    if chart.limit is None or not y.low <= chart.limit[1] <= y.high:
        return ""
    at = float(y(chart.limit[1]))
    text = f'<text class="limit-name" x="{size.width - size.right - 4}" y="{at - 5:.1f}" text-anchor="end">{escape(chart.limit[0])} {chart.limit[1]:g}</text>'
    return f'<line class="limit" x1="{size.left}" x2="{size.width - size.right}" y1="{at:.1f}" y2="{at:.1f}"/>{text}'
