"""Charts as the JSON that a page's script draws, small enough to stand in the page: lines thinned, numbers of five digits, equal step lists once.

{"xs": [steps], "ts": [hours], "figures": [{"id", "metric", "title", "log", "windows": [[name, start, end]], "limit": [name, value] or null,
  "series": [{"name", "group", "role", "x", "t", "y"}]}]}

steps: a list, or {"from", "by", "n"}. x and t are indices into xs and ts (t null: no times are known). role: `run`, or `low`, `mean`, `high` of the baseline's
band. y: null stands for a value that is not finite; `bad` lists the first such step of a candidate with its value as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    shared.values.fill()
    return {"xs": shared.xs.values, "ts": [times["y"] for times in shared.ts.values], "figures": figures}


def encode(value: dict[str, Any]) -> bytes:
    """JSON that may stand inside a <script> element: it holds no `<`."""
    return msgspec.json.encode(value).replace(b"<", b"\\u003c")


def is_timed(curves: dict[str, Any]) -> bool:
    """Whether a curve can be drawn over hours of training."""
    return any(series["t"] is not None for figure in curves["figures"] for series in figure["series"])


@dataclass(frozen=True)
class Curves:
    """A page's curves. thinned: half the points of a long line; 0: all are drawn whole. timed: whether one can be drawn over hours of training."""

    json: bytes
    timed: bool
    thinned: int

    @property
    def markup(self) -> Markup:
        return Markup(self.json.decode())


def fitted(charts: Sequence[Chart], page: Callable[[Curves], str]) -> tuple[str, Curves]:
    """(page, curves) with as many points a line as keep the page below LARGEST."""
    longest = max((len(series.steps) for one in charts for series in one.series), default=0)
    bins = BINS
    while True:
        value = payload(charts, bins)
        curves = Curves(encode(value), is_timed(value), bins if longest > 2 * bins else 0)
        text = page(curves)
        if len(text.encode()) <= LARGEST or bins <= FEWEST:
            return text, curves
        bins //= 2


class _Lists:
    """Lists, equal ones once."""

    def __init__(self, form: Callable[[np.ndarray], Any]) -> None:
        self.values: list[Any] = []
        self._form = form
        self._known: dict[bytes, int] = {}

    def add(self, array: np.ndarray) -> int:
        key = array.tobytes()
        if key not in self._known:
            self._known[key] = len(self.values)
            self.values.append(self._form(array))
        return self._known[key]


class _Values:
    """Values of many lines, rounded in one go: a page has a hundred lines, and each call of numpy takes as long as a line's numbers."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self._lines: list[dict[str, Any]] = []

    def add(self, line: dict[str, Any], values: np.ndarray) -> dict[str, Any]:
        """line["y"] is set by `fill`."""
        self._parts.append(values)
        self._lines.append(line)
        return line

    def fill(self) -> None:
        every = rounded(np.concatenate(self._parts)) if self._parts else []
        start = 0
        for line, part in zip(self._lines, self._parts):
            line["y"] = every[start : start + len(part)]
            start += len(part)


class _Shared:
    def __init__(self) -> None:
        self.values = _Values()
        self.xs, self.ts = _Lists(_steps), _Lists(lambda seconds: self.values.add({}, seconds / 3600))

    def place(self, steps: np.ndarray, seconds: np.ndarray | None) -> dict[str, int | None]:
        return {"x": self.xs.add(np.ascontiguousarray(steps)), "t": None if seconds is None else self.ts.add(seconds)}


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
    if len(series.steps) <= 2 * bins:
        steps, values, seconds = series.steps, series.values, series.seconds
    else:
        at = series.kept(bins)
        steps, values, seconds = series.steps[at], series.values[at], None if series.seconds is None else series.seconds[at]
    line: dict[str, Any] = {"name": series.name, "group": series.group, "role": "run", **shared.place(steps, seconds)}
    shared.values.add(line, values)
    if series.group and not np.isfinite(series.values).all():
        bad = int(np.flatnonzero(~np.isfinite(series.values))[0])
        line["bad"] = [int(series.steps[bad]), str(series.values[bad])]
    return line


def _band(band: Band, shared: _Shared, bins: int) -> list[dict[str, Any]]:
    at = slice(None) if len(band.steps) <= 2 * bins else np.unique(np.linspace(0, len(band.steps) - 1, 2 * bins).astype(int))
    place = shared.place(band.steps[at], None if band.seconds is None else band.seconds[at])
    lines = []
    for role, values in (("low", band.low), ("mean", band.mean), ("high", band.high)):
        lines.append({"name": f"baseline {role}", "group": 0, "role": role, **place})
        shared.values.add(lines[-1], values[at])
    return lines


def rounded(values: np.ndarray) -> list[float | None]:
    """To five significant digits; None where a value is not finite. Powers of ten are applied so that each result is the double nearest to its short text."""
    finite = np.isfinite(values)
    safe = np.where(finite & (values != 0), np.abs(values), 1.0)
    power = np.clip(DIGITS - 1 - np.floor(np.log10(safe)).astype(int), -300, 300)
    up, down = 10.0 ** np.clip(power, 0, 300), 10.0 ** np.clip(-power, 0, 300)
    with np.errstate(all="ignore"):
        result = np.where(power >= 0, np.round(values * up) / up, np.round(values / down) * down)
    result = np.where(np.isfinite(result) & ((result != 0) | (values == 0)), result, values)  # too large or too small to be scaled: as it is
    found: list[float | None] = result.tolist()
    return found if finite.all() else [value if good else None for value, good in zip(found, finite.tolist())]
