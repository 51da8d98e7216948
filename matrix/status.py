"""A results root as it stands: every declared cell with outcome, evidence, disposition and age. Verdicts are read as data; a cell without one is NOT_RUN."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.outcome import Disposition, Outcome
from matrix.problem import MatrixError, SelectionError

if TYPE_CHECKING:
    from matrix.loader import DeclaredCell, Matrix

UNDECLARED = "undeclared"
AHEAD = timedelta(hours=1)  # how far clocks of two machines may differ


@dataclass(frozen=True)
class Judged:
    """The latest verdict file of a cell, as data. A file that cannot be read is an INVALID outcome that says so."""

    outcome: Outcome
    evidence: str
    reasons: tuple[str, ...]
    seeds: tuple[int, ...]
    created: datetime | None
    recipe_changed: bool = False  # since the baseline was recorded, as the judge found
    science_hash: str | None = None


@dataclass(frozen=True)
class Standing:
    """One line of the grid. `remark` says why the disposition is not simply `required`."""

    cell: str
    key: str
    outcome: Outcome
    evidence: str
    disposition: str
    age_s: float | None
    seeds: tuple[int, ...]
    reason: str
    remark: str = ""
    recipe: str = ""
    tiers: tuple[str, ...] = ()
    hardware: str = ""

    @property
    def title(self) -> str:
        """The outcome, with the kind of evidence where a PASS would otherwise be taken for convergence."""
        return title(self.outcome, self.evidence)


def title(outcome: Outcome | str, evidence: str) -> str:
    return f"{outcome} (exactness)" if evidence == "exactness" and outcome == Outcome.PASS else str(outcome)


def standings(root: Path, matrix: Matrix, cells: Iterable[DeclaredCell] | None = None, now: datetime | None = None) -> list[Standing]:
    """Every declared cell (or those of `cells`), then, of the whole matrix, each other folder of `root` with verdicts. Raises SelectionError without a root."""
    if not root.is_dir():
        raise SelectionError(f"{root}: no such results directory")
    moment = now or datetime.now(UTC)
    chosen = [cell for _, cell in sorted(matrix.cells.items())] if cells is None else list(cells)
    found = [_standing(root, matrix, cell, moment) for cell in chosen]
    known = {cell.key for cell in matrix.cells.values()}
    return found + (list(_undeclared(root, known, moment)) if cells is None else [])


def _standing(root: Path, matrix: Matrix, cell: DeclaredCell, now: datetime) -> Standing:
    judged = latest(root / cell.key)
    disposition, remark = disposed(matrix, cell, judged, now)
    return Standing(
        cell=str(cell),
        key=cell.key,
        outcome=judged.outcome if judged else Outcome.NOT_RUN,
        evidence=judged.evidence if judged else cell.rule.evidence,
        disposition=str(disposition),
        age_s=_age(judged, now),
        seeds=judged.seeds if judged else (),
        reason=judged.reasons[0] if judged and judged.reasons else _unjudged(root / cell.key),
        remark=remark,
        recipe=cell.recipe.value.name,
        tiers=cell.tiers,
        hardware=cell.id.hardware,
    )


def disposed(matrix: Matrix, cell: DeclaredCell, judged: Judged | None, now: datetime | None = None, science: str | None = None) -> tuple[Disposition, str]:
    """What the cell's outcome means, and why that is not `required`. A quarantined or experimental cell stays what it is; a stale one is told beside it.

    science: the cell's science hash, where the caller has taken it.
    """
    old = _stale(matrix, cell, judged, now or datetime.now(UTC), science)
    entry = cell.quarantined
    if entry and entry.expires >= (now or datetime.now(UTC)).date():
        return Disposition.QUARANTINED, _joined(f"until {entry.expires} by {entry.owner} ({entry.issue}): {entry.reason}", old)
    declared = Disposition(cell.declared.value.disposition)
    ended = f"the quarantine expired on {entry.expires} (owner {entry.owner}, issue {entry.issue})" if entry else ""
    if declared is not Disposition.REQUIRED:
        return declared, _joined(ended, old)
    return (Disposition.STALE if old else Disposition.REQUIRED), _joined(ended, old)


def _stale(matrix: Matrix, cell: DeclaredCell, judged: Judged | None, now: datetime, science: str | None) -> str:
    if judged is None or judged.outcome is Outcome.NOT_RUN:
        return ""
    if judged.recipe_changed:
        return "the recipe changed since its baseline was recorded"
    if judged.science_hash and judged.science_hash != (science or _science(cell, matrix)):
        return "the recipe changed since this was judged"
    allowed = [days for tier in cell.tiers if (rule := matrix.tier_rules.get(tier)) and (days := rule.stale_after_days)]
    if judged.created and judged.created > now + AHEAD:
        return f"judged {shown_age((judged.created - now).total_seconds())} ahead of now: a clock is wrong, so its age is not known"
    age = _age(judged, now)
    if allowed and age is not None and age > min(allowed) * 86400:
        return f"judged {shown_age(age)} ago; its tiers allow {min(allowed):g} d"
    return ""


def _science(cell: DeclaredCell, matrix: Matrix) -> str | None:
    from matrix.resolver import science_hash

    try:
        return science_hash(cell, matrix)
    except (MatrixError, OSError):
        return None  # its warm start is missing: the grid shows what was judged, `check` says what is wrong


def _undeclared(root: Path, known: set[str], now: datetime) -> Iterator[Standing]:
    for folder in sorted(root.iterdir()):
        if folder.name not in known and (judged := latest(folder)):
            reason = judged.reasons[0] if judged.reasons else ""
            yield Standing(folder.name, folder.name, judged.outcome, judged.evidence, UNDECLARED, _age(judged, now), judged.seeds, reason, "not in the matrix")


def latest(folder: Path) -> Judged | None:
    """The newest verdict of <root>/<cell key>/; its name begins with the time, so only this one is read, and a file called otherwise is none."""
    names = sorted(folder.glob("verdicts/[0-9]*.json"), key=lambda path: path.name)
    return read_judged(names[-1]) if names else None


def read_judged(file: Path) -> Judged:
    """A verdict file as data, of whichever schema version."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        outcome = Outcome(value["outcome"])
        reasons = tuple(str(reason) for reason in value.get("reasons") or ())
        seeds = tuple(run["seed"] for run in value.get("candidates") or () if isinstance(run.get("seed"), int))
        created = datetime.fromisoformat(value["created"])
        told = value.get("declared") or {}
        changed, science = value.get("stale") is True, told.get("science_hash")
        return Judged(outcome, str(value["evidence"]), reasons, seeds, created if created.tzinfo else created.replace(tzinfo=UTC), changed, science)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        why = f"{file.name} is not a verdict that can be read ({type(error).__name__}: {str(error)[:80]})"
        return Judged(Outcome.INVALID, "unknown", (why,), (), None)


def _unjudged(folder: Path) -> str:
    runs = sorted(path.name for path in folder.glob("seed-*") if path.is_dir())
    return f"{', '.join(runs)}: not judged yet" if runs else "no run and no verdict in the results"


def _age(judged: Judged | None, now: datetime) -> float | None:
    return max((now - judged.created).total_seconds(), 0.0) if judged and judged.created else None


def shown_age(seconds: float | None) -> str:
    """How long, in the largest whole unit; a dash where nothing is known."""
    if seconds is None:
        return "-"
    return next((f"{seconds / size:.0f} {unit}" for size, unit in ((86400, "d"), (3600, "h"), (60, "min")) if seconds >= size), f"{seconds:.0f} s")


def one_line(text: str) -> str:
    """Text from a file on one line of a terminal: no line breaks, no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def grid(rows: Sequence[Standing]) -> list[str]:
    """The grid as text, one line a cell, and a last line of counts that never adds exactness to convergence."""
    table = [("cell", "outcome", "evidence", "disposition", "age", "seeds")]
    table += [(row.cell, row.title, row.evidence, row.disposition, shown_age(row.age_s), ",".join(map(str, row.seeds)) or "-") for row in rows]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    reasons = ["reason", *(one_line(_joined(row.reason, row.remark)) for row in rows)]
    lines = ["  ".join([*(f"{text:<{width}}" for text, width in zip(line, widths)), reason]).rstrip() for line, reason in zip(table, reasons)]
    return [*lines, "", *counts(rows)]


def counts(rows: Sequence[Standing]) -> list[str]:
    """`convergence: 3 PASS, 1 FAIL` and the same for exactness: a pass of two rollouts is no evidence of convergence."""
    lines = []
    for evidence in sorted({row.evidence for row in rows}):
        count = Counter(row.outcome for row in rows if row.evidence == evidence)
        lines.append(f"{evidence}: " + ", ".join(f"{count[outcome]} {outcome}" for outcome in Outcome if count[outcome]))
    waived = Counter(row.disposition for row in rows if row.disposition != Disposition.REQUIRED)
    return lines + ([", ".join(f"{number} {disposition}" for disposition, number in sorted(waived.items()))] if waived else [])


def as_data(rows: Sequence[Standing]) -> list[dict[str, Any]]:
    return [{**asdict(row), "title": row.title} for row in rows]
