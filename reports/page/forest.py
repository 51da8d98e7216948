"""The differences with their intervals, in units of δ: one row a statistic, the margin between two lines. An inline SVG: it needs no script."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

from reports.verdict import Comparison

ROW, TOP, BOTTOM = 46, 24, 26
REACH = 2.0  # δ shown to each side; what lies beyond is cut and marked with an arrow
MARKS = {"inside": "✓", "outside": "✗", "between": "?", "undefined": "?", "descriptive": "·"}


@dataclass(frozen=True)
class Scale:
    """Maps values in [-REACH, REACH] onto pixels [start, end]."""

    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value + REACH) / (2 * REACH) * (self.end - self.start)


@dataclass(frozen=True)
class Bar:
    """One interval in units of δ (logarithmic for ratios)."""

    at: float
    low: float | None
    high: float | None


def bar(comparison: Comparison) -> Bar:
    def scaled(value: float) -> float:
        if comparison.scale == "ratio":
            return math.log(value) / math.log(comparison.delta) if value > 0 else math.nan
        return value / comparison.delta

    ends = [None if end is None else scaled(end) for end in (comparison.low, comparison.high)]
    return Bar(scaled(comparison.difference), ends[0], ends[1])


def draw(comparisons: list[Comparison], width: int, css: str = "") -> str:
    """An <svg>; the row's text stands above its bar so that it also fits a phone."""
    if not comparisons:
        return ""
    height = TOP + ROW * len(comparisons) + BOTTOM
    x = Scale(10, width - 10)
    parts = [_margins(comparisons, x, height)]
    parts += [_row(comparison, x, TOP + ROW * index, width) for index, comparison in enumerate(comparisons)]
    for value in (-2, -1, 0, 1, 2):
        text = "0" if value == 0 else f"{value:+d} δ".replace("+1 δ", "+δ").replace("-1 δ", "−δ").replace("-", "−")
        anchor = "start" if value == -2 else "end" if value == 2 else "middle"
        parts.append(f'<text class="tick" x="{x(value):.1f}" y="{height - 8}" text-anchor="{anchor}">{text}</text>')
    names = "; ".join(escape(comparison.text) for comparison in comparisons)
    return f'<svg class="forest {css}" viewBox="0 0 {width} {height}" role="img" aria-label="{names}">{"".join(parts)}</svg>'


def _margins(comparisons: list[Comparison], x: Scale, height: int) -> str:
    """The allowed range, shaded; open to the side where better is allowed."""
    top, bottom, parts = TOP - 8, height - BOTTOM, []
    for index, comparison in enumerate(comparisons):
        low, high = (-1.0 if comparison.margin_low is not None else -REACH), (1.0 if comparison.margin_high is not None else REACH)
        if comparison.state == "descriptive":
            continue
        y, tall = TOP - 8 + ROW * index, ROW
        parts.append(f'<rect class="allowed" x="{x(low):.1f}" y="{y}" width="{x(high) - x(low):.1f}" height="{tall}"/>')
        for end, margin in ((-1.0, comparison.margin_low), (1.0, comparison.margin_high)):
            if margin is not None:
                parts.append(f'<line class="margin" x1="{x(end):.1f}" x2="{x(end):.1f}" y1="{y}" y2="{y + tall}"/>')
    parts.append(f'<line class="zero" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="{top}" y2="{bottom}"/>')
    return "".join(parts)


def _row(comparison: Comparison, x: Scale, top: int, width: int) -> str:
    shape = bar(comparison)
    y = top + 22
    number = f"{comparison.difference:.2f}×" if comparison.scale == "ratio" else f"{comparison.difference:+.4f}"
    state = f"{MARKS[comparison.state]} {escape(comparison.state)}"
    text = f'<text class="row-name" x="12" y="{top + 6}">{escape(comparison.title)}</text>'
    text += f'<text class="row-value" x="{width - 12}" y="{top + 6}" text-anchor="end">{number} · {state}</text>'
    if not math.isfinite(shape.at):
        return text
    at = min(max(shape.at, -REACH), REACH)
    parts = [text]
    if shape.low is not None and shape.high is not None and math.isfinite(shape.low) and math.isfinite(shape.high):
        low, high = max(shape.low, -REACH), min(shape.high, REACH)
        if low < REACH and high > -REACH:
            parts.append(f'<line class="interval {comparison.state}" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}"/>')
            parts += [
                f'<line class="end {comparison.state}" x1="{x(end):.1f}" x2="{x(end):.1f}" y1="{y - 6}" y2="{y + 6}"/>'
                for end in (low, high)
                if abs(end) < REACH
            ]
    arrow = "◀" if shape.at < -REACH else "▶" if shape.at > REACH else ""
    if arrow:
        anchor = "start" if shape.at < 0 else "end"
        parts.append(f'<text class="arrow {comparison.state}" x="{x(at):.1f}" y="{y + 5}" text-anchor="{anchor}">{arrow} {abs(shape.at):.0f} δ</text>')
    else:
        parts.append(f'<circle class="dot {comparison.state}" cx="{x(at):.1f}" cy="{y}" r="5"/>')
    return "".join(parts)
