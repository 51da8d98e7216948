"""The matrix page as data: one row a cell, counts that add up, in a form that other programs may rely on (docs/pages.md, `index.json`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from matrix.outcome import Outcome
from reports.heads import Difference, Head, number
from reports.night import Night
from reports.results import CellResult, State, counts

SCHEMA_VERSION = 1
NIGHTS = 14  # verdicts of a trend


STATE_MARKS: dict[str, str] = {
    State.FAILED: "✗",
    State.INVALID: "⊘",
    State.INCOMPLETE: "◐",
    State.UNDECIDED: "?",
    State.QUARANTINED: "‖",
    State.STALE: "↺",
    State.NO_BASELINE: "∅",
    State.INFRA: "⚡",
    State.NOT_RUN: "○",
    State.EXACT: "≈",
    State.PASSED: "✓",
}


class Point(msgspec.Struct, frozen=True):
    """One earlier verdict. `off`: the last window's difference to the baseline in units of its margin; None where there was none."""

    time: str
    outcome: str
    commit: str | None = None
    off: float | None = None


class Row(msgspec.Struct, frozen=True):
    """One cell. Fields are only ever added; what is not known is None or empty."""

    cell: str
    key: str
    declared: bool
    state: str  # `results.State`: every cell is in exactly one
    outcome: str
    title: str  # the outcome with the kind of evidence
    evidence: str | None
    disposition: str
    remark: str
    model: str
    family: str
    hardware: str
    mode: str
    variant: str
    model_text: str
    recipe: str
    tiers: list[str]
    owner: str  # of the quarantine
    expires: str | None  # last day of the quarantine
    issue: str
    unvalidated: str
    time: str | None  # when it was judged
    age_s: float | None
    seeds: list[int]
    n: int
    B: int
    commits: list[str]
    dirty: bool
    reasons: list[str]
    suspects: list[str]
    statistics: list[dict[str, Any]]
    trend: list[Point]  # oldest first, the latest included
    page: str  # relative to index.json
    verdict: str | None  # file, relative to the results root
    alarm: bool  # a FAIL that somebody is woken for (`reports.night`)

    @property
    def reason(self) -> str:
        """One line of why."""
        return self.reasons[0] if self.reasons else ""

    @property
    def last(self) -> dict[str, Any] | None:
        """The last window against the baseline."""
        return next((one for one in self.statistics if one["statistic"] == "last"), None)


class Site(msgspec.Struct, frozen=True):
    """All of the matrix page. counts.state adds up to the number of rows; `declared` of them are the matrix's."""

    schema_version: int
    created: str
    declared: int
    undeclared: int
    counts: dict[str, dict[str, int]]  # by state, outcome and disposition
    night: dict[str, Any]  # alarms, held, text
    cells: list[Row]


def site(results: Sequence[CellResult], night: Night, now: datetime) -> Site:
    """The data of the matrix page."""
    alarms = set(night.alarms)
    rows = [row(result, result.id in alarms) for result in results]
    declared = sum(one.declared for one in rows)
    return Site(
        SCHEMA_VERSION,
        now.isoformat(timespec="seconds"),
        declared,
        len(rows) - declared,
        _counts(results),
        {"alarms": list(night.alarms), "held": list(night.held), "text": night.text},
        rows,
    )


def row(result: CellResult, alarm: bool = False) -> Row:
    latest, entry = result.latest, result.quarantined
    return Row(
        cell=result.id,
        key=result.key,
        declared=result.declared,
        state=str(result.state),
        outcome=str(result.outcome),
        title=result.title,
        evidence=latest.evidence if latest else None,
        disposition=result.disposition,
        remark=result.remark,
        model=result.model_name,
        family=result.family,
        hardware=result.hardware,
        mode=result.mode,
        variant=result.variant,
        model_text=result.model,
        recipe=result.recipe,
        tiers=list(result.tiers),
        owner=result.owner,
        expires=str(entry.expires) if entry else None,
        issue=entry.issue if entry else "",
        unvalidated=result.unvalidated,
        time=latest.created if latest and latest.created else None,
        age_s=result.age_s,
        seeds=list(result.seeds),
        n=latest.n if latest else 0,
        B=latest.B if latest else 0,
        commits=list(latest.commits) if latest else [],
        dirty=latest.dirty if latest else False,
        reasons=list(result.reasons),
        suspects=list(latest.suspects) if latest else [],
        statistics=[statistic(one) for one in latest.statistics] if latest else [],
        trend=[point(head) for head in result.history[-NIGHTS:]],
        page=f"cells/{result.key}.html",
        verdict=f"{result.key}/verdicts/{latest.file}" if latest else None,
        alarm=alarm,
    )


def statistic(one: Difference) -> dict[str, Any]:
    """Numbers, None where one is not finite (JSON has no other)."""
    values = {name: number(getattr(one, name)) for name in ("difference", "low", "high", "delta")}
    return {"statistic": one.statistic, "scale": one.scale, "state": one.state, **{name: finite(value) for name, value in values.items()}}


def point(head: Head) -> Point:
    return Point(head.created, head.outcome, head.commits[0] if head.commits else None, off(head))


def off(head: Head) -> float | None:
    """The last window's difference in units of δ."""
    last = next((one for one in head.statistics if one.statistic == "last"), None)
    difference, delta = (number(last.difference), number(last.delta)) if last else (None, None)
    return finite(difference / delta) if difference is not None and delta else None


def finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None  # NaN compares with nothing


def _counts(results: Sequence[CellResult]) -> dict[str, dict[str, int]]:
    outcomes = Counter(result.outcome for result in results)
    dispositions = Counter(result.disposition for result in results)
    return {
        "state": {str(state): count for state, count in counts(results).items()},
        "outcome": {str(outcome): outcomes[outcome] for outcome in Outcome if outcomes[outcome]},
        "disposition": dict(sorted(dispositions.items())),
    }


# What needs eyes first, then what is undecided, then what is missing, then what is well.
ATTENTION: Mapping[str, int] = {str(state): place for place, state in enumerate(State)}


def by_attention(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda one: (ATTENTION[one.state], one.cell))


def encode(value: Any) -> bytes:
    """JSON with a line end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
