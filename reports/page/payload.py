"""Charts as the JSON that a page's script draws, small enough to stand in the page: lines thinned, numbers of five digits, equal step lists once.

{"xs": [steps], "ts": [hours], "figures": [{"id", "metric", "title", "log", "windows": [[name, start, end]], "limit": [name, value] or null,
  "series": [{"name", "group", "role", "x", "t", "y"}]}]}

steps: a list, or {"from", "by", "n"}. x and t are indices into xs and ts (t null: no times are known). role: `run`, or `low`, `mean`, `high` of the baseline's
band. y: null stands for a value that is not finite; `bad` lists the first such step of a candidate with its value as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from markupsafe import Markup

from reports.page.charts import BINS, Band, Chart, Series

DIGITS = 5
LARGEST = 1_500_000  # bytes of a page of its own
FEWEST = 16  # bins


def payload(charts: Sequence[Chart], bins: int = BINS) -> dict[str, Any]:
    """`bins`: half the points of a line."""
    shared = _Shared()
    figures = [_figure(number, chart, shared, bins) for number, chart in enumerate(charts)]
    return {"xs": shared.xs.values, "ts": shared.ts.values, "figures": figures}


def encode(value: dict[str, Any]) -> Markup:
    """JSON that may stand inside a <script> element: it holds no `<`."""
    return Markup(msgspec.json.encode(value).decode().replace("<", "\\u003c"))


def is_timed(curves: dict[str, Any]) -> bool:
    """Whether a curve can be drawn over hours of training."""
    return any(series["t"] is not None for figure in curves["figures"] for series in figure["series"])


def fitted(charts: Sequence[Chart], page: Callable[[dict[str, Any], int], str]) -> tuple[str, dict[str, Any]]:
    """(page, curves) with as many points a line as keep it below LARGEST. `page`: makes the page of curves, and is told half the points of a long line (0: all
    are drawn whole)."""
    longest = max((len(series.steps) for one in charts for series in one.series), default=0)
    bins = BINS
    while True:
        curves = payload(charts, bins)
        text = page(curves, bins if longest > 2 * bins else 0)
        if len(text.encode()) <= LARGEST or bins <= FEWEST:
            return text, curves
        bins //= 2


class _Lists:
    """Lists, equal ones once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[bytes, int] = {}

    def add(self, array: np.ndarray, form: Any) -> int:
        key = array.tobytes()
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(form(array))
        return self._known[key]


class _Shared:
    def __init__(self) -> None:
        self.xs, self.ts = _Lists(), _Lists()

    def place(self, steps: np.ndarray, seconds: np.ndarray | None) -> dict[str, int | None]:
        hours = None if seconds is None else self.ts.add(seconds, lambda array: rounded(array / 3600))
        return {"x": self.xs.add(np.ascontiguousarray(steps), _steps), "t": hours}


def _steps(steps: np.ndarray) -> Any:
    strides = np.diff(steps)
    if len(steps) > 2 and (strides == strides[0]).all():
        return {"from": int(steps[0]), "by": int(strides[0]), "n": len(steps)}
    return steps.tolist()


def _figure(number: int, chart: Chart, shared: _Shared, bins: int) -> dict[str, Any]:
    series = _band(chart.band, shared, bins) if chart.band else []
    series += [_line(one, shared, bins) for one in sorted(chart.series, key=lambda one: one.group > 0)]
    return {
        "id": f"f{number}",
        "metric": chart.metric,
        "title": chart.title,
        "log": chart.log,
        "windows": [[window.name, window.start, window.end] for window in chart.windows],
        "limit": list(chart.limit) if chart.limit else None,
        "series": series,
    }


def _line(series: Series, shared: _Shared, bins: int) -> dict[str, Any]:
    at = series.kept(bins)
    values = series.values[at]
    place = shared.place(series.steps[at], None if series.seconds is None else series.seconds[at])
    line: dict[str, Any] = {"name": series.name, "group": series.group, "role": "run", **place, "y": rounded(values)}
    bad = np.flatnonzero(~np.isfinite(series.values))
    if series.group and len(bad):
        line["bad"] = [int(series.steps[bad[0]]), str(series.values[bad[0]])]
    return line


def _band(band: Band, shared: _Shared, bins: int) -> list[dict[str, Any]]:
    at = np.unique(np.linspace(0, len(band.steps) - 1, min(len(band.steps), 2 * bins)).astype(int))
    place = shared.place(band.steps[at], None if band.seconds is None else band.seconds[at])
    return [
        {"name": f"baseline {role}", "group": 0, "role": role, **place, "y": rounded(values[at])}
        for role, values in (("low", band.low), ("mean", band.mean), ("high", band.high))
    ]


def rounded(values: np.ndarray) -> list[float | None]:
    """To five significant digits; None where a value is not finite. Powers of ten are applied so that each result is the double nearest to its short text."""
    finite = np.isfinite(values)
    safe = np.where(finite & (values != 0), np.abs(values), 1.0)
    power = np.clip(DIGITS - 1 - np.floor(np.log10(safe)).astype(int), -300, 300)
    up, down = 10.0 ** np.clip(power, 0, 300), 10.0 ** np.clip(-power, 0, 300)
    with np.errstate(all="ignore"):
        result = np.where(power >= 0, np.round(values * up) / up, np.round(values / down) * down)
    result = np.where(np.isfinite(result), result, values)
    found: list[float | None] = result.tolist()
    return found if finite.all() else [value if good else None for value, good in zip(found, finite.tolist())]
