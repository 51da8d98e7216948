"""The matrix as Markdown: for a pull request's comment and a Buildkite annotation, which allow tables, <details> and images, and at most 1 MiB.

Cells that need eyes come first and whole; what does not fit is cut from the end, and the text says how many were left out. The counts are of all cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matrix.outcome import Outcome
from reports.errors import ReportError
from reports.results import State
from reports.show import MARKS
from reports.site.rows import STATE_MARKS, Row, Site, by_attention

LIMIT = 1024 * 1024  # bytes of an annotation's body
WELL = (str(State.PASSED), str(State.EXACT))
MISSING = (str(State.NOT_RUN),)
BARS = "▁▂▃▄▅▆▇█"

Link = Callable[[Row], str | None]


def annotation(
    site: Site,
    *,
    title: str = "Does it train right?",
    limit: int = LIMIT,
    link: Link | None = None,
    pictures: Mapping[str, str] | None = None,
    curves: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Markdown of at most `limit` bytes in UTF-8.

    link: a cell's page (None: no link). pictures: cell id -> address of an image, such as `artifact://report/cells/<key>.png`.
    curves: cell id -> reward by step, drawn in text. Raises ValueError for a limit that does not hold the counts.
    """
    rows = by_attention(site.cells)
    loud = [row for row in rows if row.state not in WELL + MISSING]
    quiet = [row for row in rows if row.state in WELL + MISSING]
    head = "\n".join([f"### {escape(title)}", "", summary(site), *_night(site), ""])
    if len((head + LEFT_OUT).encode()) > limit:
        raise ValueError(f"an annotation of {limit} bytes does not hold the counts, which take {len(head.encode())}")
    parts = _Budget(limit, head)
    parts.table([_line(row, link) for row in loud])
    parts.blocks(_details(row, pictures or {}, curves or {}) for row in loud)
    parts.fold(f"{len(quiet)} cells passed or did not run", [_line(row, link) for row in quiet])
    return parts.text()


LEFT_OUT = "\n\n_99999 lines and 99999 details more do not fit here: the site has every cell._\n"
TABLE = ("| | cell | outcome | why | last window, in δ |", "|---|---|---|---|---|")


class _Budget:
    """Text that is added while it fits."""

    def __init__(self, limit: int, head: str) -> None:
        self._limit, self._parts, self._size = limit - len(LEFT_OUT.encode()), [head], len(head.encode())
        self._lines = self._blocks = 0  # that did not fit

    def _fits(self, text: str) -> bool:
        size = len(text.encode())
        if self._size + size > self._limit:
            return False
        self._size += size
        self._parts.append(text)
        return True

    def table(self, lines: Sequence[str], before: str = "", after: str = "\n") -> None:
        start = before + "\n".join(TABLE) + "\n"
        room = self._limit - len(after.encode())
        if not lines:
            return
        if self._size + len(start.encode()) > room or not self._fits(start):
            self._lines += len(lines)
            return
        self._limit = room
        for number, line in enumerate(lines):
            if not self._fits(line + "\n"):
                self._lines += len(lines) - number
                break
        self._limit += len(after.encode())
        self._fits(after)

    def blocks(self, blocks: Any) -> None:
        for block in blocks:
            self._blocks += not self._fits(block)

    def fold(self, title: str, lines: Sequence[str]) -> None:
        self.table(lines, f"<details><summary>{title}</summary>\n\n", "\n</details>\n")

    def text(self) -> str:
        parts = [f"{number} {what}" for number, what in ((self._lines, "lines"), (self._blocks, "details")) if number]
        left = f"\n\n_{' and '.join(parts)} more do not fit here: the site has every cell._\n" if parts else ""
        return "".join(self._parts) + left


def summary(site: Site) -> str:
    """Counts by state, in words."""
    total = len(site.cells)
    counts = site.counts["state"]
    others = f" ({site.undeclared} of them not in the matrix)" if site.undeclared else ""
    return f"**{total} cells{others}**: " + (", ".join(f"{STATE_MARKS[state]} {count} {state}" for state, count in counts.items()) or "none")


def _night(site: Site) -> list[str]:
    alarms, held = site.night["alarms"], site.night["held"]
    return ["", f"Alarms of the night, false ones kept below one in twenty: {escape(site.night['text'])}."] if alarms or held else []


def _line(row: Row, link: Link | None) -> str:
    address = link(row) if link else None
    cell = f'<a href="{attribute(address)}"><code>{escape(row.cell)}</code></a>' if address else f"<code>{escape(row.cell)}</code>"
    outcome = f"{escape(row.title)}{'' if row.disposition == 'required' else f' · {escape(row.disposition)}'}"
    why = escape(_short(row.reason))
    if row.suspects:
        why += f" <br>suspect: **{escape(row.suspects[0])}**"
    if row.remark:
        why += f" <br>{escape(_short(row.remark))}"
    return f"| {STATE_MARKS[row.state]} | {cell} | {outcome} | {why} | {_trend(row)} |"


def _trend(row: Row) -> str:
    """The last nights' marks, then how far the last window lies off now."""
    marks = "".join(MARKS[Outcome(point.outcome)] for point in row.trend)
    off = row.trend[-1].off if row.trend else None
    return " ".join(part for part in (marks, f"{off:+.2f}" if off is not None else "") if part) or "–"


def _details(row: Row, pictures: Mapping[str, str], curves: Mapping[str, Sequence[float]]) -> str:
    lines = [f"\n<details><summary>{STATE_MARKS[row.state]} {escape(row.cell)}: {escape(row.title)}</summary>\n"]
    lines += [f"- {escape(_short(reason, 400))}" for reason in row.reasons[:8]]
    lines += [f"- … {len(row.reasons) - 8} more reasons"] if len(row.reasons) > 8 else []
    lines += [f"- suspects: {escape(', '.join(row.suspects))}"] if row.suspects else []
    about = [
        f"seeds {', '.join(map(str, row.seeds))}" if row.seeds else "",
        f"{row.B} baseline runs" if row.B else "",
        f"recipe {row.recipe}" if row.recipe else "",
    ]
    about += [f"commit {', '.join(commit[:12] for commit in row.commits)}{' with local changes' if row.dirty else ''}" if row.commits else ""]
    lines += [f"- {escape(' · '.join(part for part in about if part))}"] if any(about) else []
    if row.statistics:
        lines += ["", "| statistic | difference | interval | δ | state |", "|---|---:|---:|---:|---|"]
        lines += [
            f"| {escape(one['statistic'])} | {_value(one, 'difference')} | {_interval(one)} | {_plain(one['delta'])} | {one['state']} |"
            for one in row.statistics
        ]
    if curve := curves.get(row.cell):
        lines += ["", f"reward by step: `{sparkline(curve)}`"]
    if address := pictures.get(row.cell):
        lines += ["", f'<img alt="{escape(row.cell)}: reward over its baseline" src="{attribute(address)}" width="900">']
    return "\n".join([*lines, "", "</details>", ""])


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """A curve in text: bars between its lowest and highest value; × where a value is not a number."""
    groups = [values[len(values) * i // width : max(len(values) * (i + 1) // width, len(values) * i // width + 1)] for i in range(min(width, len(values)))]
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if not finite:
        return "×" * len(groups)
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    means = [sum(group) / len(group) for group in groups]
    return "".join(BARS[min(int((mean - low) / span * len(BARS)), len(BARS) - 1)] if mean == mean and abs(mean) != float("inf") else "×" for mean in means)


def _interval(one: Mapping[str, Any]) -> str:
    return "–" if one["low"] is None or one["high"] is None else f"{_value(one, 'low')} … {_value(one, 'high')}"


def _value(one: Mapping[str, Any], name: str) -> str:
    value = one[name]
    return "–" if value is None else f"{value:.2f}×" if one["scale"] == "ratio" else f"{value:+.4f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _short(text: str, longest: int = 200) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


_SPECIAL = re.compile(r"[\\`*\[\]<>|~#@$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line: no markup, no mention, no cell border of a table."""
    flat = " ".join(text.split())
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", flat.replace("&", "&amp;"))


def attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def of_results(
    root: Path, matrix_root: Path | None = None, *, tier: str | None = None, cells: Sequence[str] | None = None, link: str | None = None, limit: int = LIMIT
) -> str:
    """The annotation of a results root. Raises ReportError for a root, tier or cell that is not there: an empty table would look like a quiet night."""
    from reports.night import of_results as night_of
    from reports.results import read_results
    from reports.site.rows import site

    results = read_results(root, matrix_root)
    for name in cells or ():
        if name not in {result.id for result in results}:
            raise ReportError(f"--cell {name}: neither declared nor in {root}")
    chosen = [result for result in results if (not cells or result.id in cells) and (tier is None or tier in result.tiers)]
    if not chosen:
        raise ReportError(f"--tier {tier}: no cell of it" if tier else "no cell to annotate")
    base = link.rstrip("/") if link else None
    data = site(chosen, night_of(chosen), datetime.now(UTC))
    return annotation(data, limit=limit, link=(lambda row: f"{base}/{row.page}") if base else None)
