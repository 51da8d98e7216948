"""The gate: what every cell of a build came to, what the policy makes of it, and one exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.policy import Action, Policy
from ci.selection import Selected
from matrix.outcome import Outcome

if TYPE_CHECKING:
    from matrix.loader import DeclaredCell, Matrix
    from matrix.status import Standing

CHECKS_FAILED = 3  # a step such as lint failed, and no cell's outcome blocks


@dataclass(frozen=True)
class Decision:
    """One cell: what its runs came to, and what that does."""

    standing: Standing
    tier: str | None
    action: Action
    why: str = ""  # where the action is not the tier's rule
    note: str = ""  # why no further seed was run

    @property
    def outcome(self) -> Outcome:
        return self.standing.outcome

    @property
    def blocking(self) -> Outcome:
        """The outcome whose exit code a block has: a stale PASS is as good as no verdict."""
        return Outcome.NOT_RUN if self.outcome is Outcome.PASS else self.outcome


@dataclass(frozen=True)
class Gate:
    decisions: list[Decision]
    policy: Policy
    checks: Mapping[str, str] = field(default_factory=dict)  # steps that must have passed -> outcome
    nothing: list[str] = field(default_factory=list)  # why no cell was to run
    unselected: int = 0
    notes: list[str] = field(default_factory=list)
    hosts: Mapping[str, int] = field(default_factory=dict)  # runs lost to the machine

    @property
    def style(self) -> str:
        """Of the annotation."""
        return "error" if self.exit_code else "warning" if self.of(Action.WARN) else "success"

    def lines(self) -> list[str]:
        """What is not simply passing, as a terminal shows it."""
        rows = [(str(action), one) for action in (Action.BLOCK, Action.WARN) for one in self.of(action)]
        return [f"{name:<5}  {one.standing.cell}  {one.standing.title} ({one.standing.disposition}): {one.standing.reason}" for name, one in rows]

    def as_data(self) -> dict[str, Any]:
        cells = [
            {**asdict(one.standing), "title": one.standing.title, "tier": one.tier, "action": str(one.action), "why": one.why, "note": one.note}
            for one in self.decisions
        ]
        counts = {str(outcome): count for outcome, count in self.counts.items()}
        told = {"exit_code": self.exit_code, "status": self.status, "counts": counts, "checks": dict(self.checks), "nothing": self.nothing}
        return {"schema_version": 1, **told, "unselected": self.unselected, "notes": self.notes, "hosts": dict(self.hosts), "cells": cells}

    def of(self, action: Action) -> list[Decision]:
        """Decisions of an action, most severe outcome first."""
        order = [*self.policy.severity, Outcome.PASS]
        return sorted((one for one in self.decisions if one.action is action), key=lambda one: (order.index(one.blocking), one.standing.cell))

    @property
    def broken(self) -> list[str]:
        return [f"{step} {outcome or 'did not run'}" for step, outcome in self.checks.items() if outcome != "passed"]

    @property
    def exit_code(self) -> int:
        """0 passes. The most severe blocking outcome's code; NOT_RUN's where nothing ran at all though something was to; CHECKS_FAILED."""
        blocking = self.of(Action.BLOCK)
        if blocking:
            return blocking[0].blocking.exit_code
        if self.broken:
            return CHECKS_FAILED
        if not self.decisions:
            return 0 if self.nothing else Outcome.NOT_RUN.exit_code
        return Outcome.NOT_RUN.exit_code if all(one.outcome is Outcome.NOT_RUN for one in self.decisions) else 0

    @property
    def counts(self) -> dict[Outcome, int]:
        """Cells of each outcome; they add up to the number of cells."""
        found = Counter(one.outcome for one in self.decisions)
        return {outcome: found[outcome] for outcome in Outcome if found[outcome]}

    @property
    def status(self) -> str:
        """The text of the commit status: at most 140 characters, what blocks first."""
        counted = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items()) or "no cell was to run"
        blocking = self.of(Action.BLOCK)
        if blocking:
            more = f" and {len(blocking) - 1} more block" if len(blocking) > 1 else " blocks"
            told = f"{blocking[0].standing.cell} {blocking[0].outcome}{more}; {counted}"
        elif self.broken:
            told = f"{'; '.join(self.broken)}; {counted}"
        else:
            told = f"nothing ran; {counted}" if self.exit_code else counted
        return told if len(told) <= 140 else told[:139] + "…"


def decide(
    root: Path,
    matrix: Matrix,
    policy: Policy,
    selected: Selected | None = None,
    tier: str | None = None,
    checks: Mapping[str, str] | None = None,
    held: Mapping[str, str] | None = None,
    hosts: Mapping[str, int] | None = None,
    now: datetime | None = None,
) -> Gate:
    """Decide over a results root: the cells of a build's selection, of a tier, or every declared cell (each by its first tier).

    `matrix` is loaded with `today=date.min`, so that a quarantine that has ended stops nobody from deciding: `matrix.status` lets its cell count again.
    """
    from matrix.status import standings

    moment = now or datetime.now(UTC)
    tier = selected.tier if selected else tier
    cells = _cells(matrix, selected, tier)
    notes = [f"the exception for {entry.cells} ended on {entry.expires}: {entry.because}" for entry in policy.expired(moment.date())]
    excluded = {entry.cell: entry.reason for entry in selected.excluded} if selected else {}
    decisions = []
    for standing in standings(root, matrix, cells, moment):
        cell = matrix.cells[standing.cell]
        by = tier or next(name for name in matrix.tiers if name in cell.tiers)
        action, why = policy.action(standing.cell, by, standing.outcome, standing.disposition, moment.date())
        decisions.append(Decision(_told(standing, excluded), by, action, why, (held or {}).get(standing.cell, "")))
    chosen = {standing.standing.cell for standing in decisions}
    unselected = sum(str(cell) not in chosen for cell in matrix.select(tier=tier))
    return Gate(decisions, policy, dict(checks or {}), list(selected.nothing) if selected else [], unselected, notes, dict(hosts or {}))


def _cells(matrix: Matrix, selected: Selected | None, tier: str | None) -> list[DeclaredCell]:
    if selected is None:
        return matrix.select(tier=tier)
    names = [*(cell.cell for cell in selected.cells), *(entry.cell for entry in selected.excluded)]
    return [matrix.cell(name) for name in sorted(names)]


def _told(standing: Standing, excluded: Mapping[str, str]) -> Standing:
    """A cell that no step could run says why, in place of that there is no verdict."""
    reason = excluded.get(standing.cell)
    return replace(standing, reason=reason) if reason and standing.outcome is Outcome.NOT_RUN else standing
