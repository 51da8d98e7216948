"""index.html: model rows × (hardware, mode) columns, then one line a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from markupsafe import Markup

from matrix.outcome import Disposition, Outcome
from reports.page.names import css_of
from reports.page.render import Assets, render
from reports.results import State
from reports.show import MARKS
from reports.site.rows import STATE_MARKS, Row, Site, by_attention

STATE_MEANINGS: dict[str, str] = {
    State.QUARANTINED: "its outcome is shown and does not count until the day its owner named",
    State.STALE: "judged longer ago than its tiers allow, or its recipe changed since",
    State.EXACT: "two or three rollouts: the numbers agree; not evidence of convergence",
}


@dataclass(frozen=True)
class Column:
    id: str
    hardware: str
    mode: str


@dataclass(frozen=True)
class Line:
    model: str
    cells: list[tuple[Column, list[Row]]]


@dataclass(frozen=True)
class Grid:
    """groups: (hardware, number of columns, their ids)."""

    columns: list[Column]
    groups: list[tuple[str, int, str]]
    lines: list[Line]


def grid(rows: Sequence[Row]) -> Grid:
    """Declared cells only: another folder of the results has no place in it."""
    declared = [row for row in rows if row.declared]
    names = sorted({(row.hardware, row.mode) for row in declared})
    columns = [Column(f"c{number}", hardware, mode) for number, (hardware, mode) in enumerate(names)]
    place: dict[tuple[str, str, str], list[Row]] = {}
    for row in declared:
        place.setdefault((row.model, row.hardware, row.mode), []).append(row)
    lines = [
        Line(model, [(column, place.get((model, column.hardware, column.mode), [])) for column in columns]) for model in sorted({row.model for row in declared})
    ]
    groups = [(hardware, list(found)) for hardware, found in groupby(columns, key=lambda column: column.hardware)]
    return Grid(columns, [(hardware, len(found), " ".join(column.id for column in found)) for hardware, found in groups], lines)


def matrix_page(site: Site, assets: Assets, problems: Sequence[str] = ()) -> str:
    """The page as HTML."""
    rows = by_attention(site.cells)
    return render(
        "index.html",
        assets,
        site=site,
        rows=rows,
        grid=grid(site.cells),
        choices=_choices(rows),
        texts={row.key: _words(row) for row in rows},
        trends={row.key: _trend(row) for row in rows},
        state_marks=STATE_MARKS,
        state_meanings=STATE_MEANINGS,
        differs=(State.QUARANTINED, State.STALE),
        problems=list(problems),
    )


def _choices(rows: Sequence[Row]) -> dict[str, list[str]]:
    return {
        "tiers": sorted({tier for row in rows for tier in row.tiers}),
        "hardware": sorted({row.hardware for row in rows if row.hardware}),
        "families": sorted({row.family for row in rows if row.family}),
        "dispositions": sorted({row.disposition for row in rows} - {str(Disposition.QUARANTINED), str(Disposition.STALE)}),
        "owners": sorted({row.owner for row in rows if row.owner}),
    }


def _words(row: Row) -> str:
    """What the search looks in, in lower case."""
    return " ".join([row.cell, row.title, row.recipe, row.reason[:200], *row.suspects[:1]]).lower()


def _trend(row: Row) -> Markup:
    """The last verdicts as marks, oldest first, over how far the last window lay off: a line between the margins at ± δ."""
    if not row.trend:
        return Markup("")
    marks = "".join(
        MARKS[Outcome(point.outcome)] if point.outcome == "PASS" else f'<b class="{css_of(point.outcome)}">{MARKS[Outcome(point.outcome)]}</b>'
        for point in row.trend
    )
    words = ", ".join(point.outcome for point in row.trend)
    return Markup(f'<div class="trend"><span role="img" aria-label="{escape(words)}">{marks}</span>{_line(row)}</div>')


def _line(row: Row) -> str:
    points = [(number, max(-2.0, min(2.0, point.off))) for number, point in enumerate(row.trend) if point.off is not None]
    if len(points) < 2:
        return ""
    wide = 88 / max(len(row.trend) - 1, 1)
    path = " ".join(f"{1 + number * wide:.0f},{11 - value * 5:.1f}" for number, value in points)
    edges = "".join(f'<line class="edge" x1="0" x2="90" y1="{y}" y2="{y}"/>' for y in (6, 16))
    return f'<svg viewBox="0 0 90 22" aria-hidden="true">{edges}<polyline points="{path}"/></svg>'
