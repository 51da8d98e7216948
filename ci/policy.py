"""The gate's policy: which outcomes block, warn or pass, by tier and cell. Read from YAML, strictly."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from ci.settings import POLICY, read_typed
from matrix.hardware_types import Name, Text
from matrix.outcome import Disposition, Outcome
from matrix.problem import MatrixError, Problem, Where, nearest
from matrix.rule import Strict


class Action(StrEnum):
    BLOCK = "block"
    WARN = "warn"
    PASS = "pass"


ORDER = (Action.PASS, Action.WARN, Action.BLOCK)

Said = Annotated[Action, Field(strict=False)]
Of = Annotated[Outcome, Field(strict=False)]
ANYTHING_BUT_PASS = tuple(outcome for outcome in Outcome if outcome is not Outcome.PASS)


class ForCells(Strict):
    """An exception for the cells that a pattern matches, with its reason and its end."""

    cells: Text
    outcomes: dict[Of, Said]
    tiers: list[Name] = []  # empty: in all
    because: Text
    expires: date


class AtMost(Strict):
    experimental: Said = Action.WARN
    quarantined: Said = Action.WARN


class Policy(Strict):
    severity: list[Of]
    outcomes: dict[Of, Said]
    tiers: dict[Name, dict[Of, Said]] = {}
    at_most: AtMost = AtMost()
    stale: Said = Action.WARN
    cells: list[ForCells] = []

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name, told in (("severity", self.severity), ("outcomes", list(self.outcomes))):
            missing = [str(outcome) for outcome in ANYTHING_BUT_PASS if outcome not in told]
            if missing or len(told) != len(ANYTHING_BUT_PASS):
                raise ValueError(f"{name} must hold every outcome but PASS once; missing: {', '.join(missing) or 'none'}")
        for where, said in (*(("tiers", outcomes) for outcomes in self.tiers.values()), *(("cells", entry.outcomes) for entry in self.cells)):
            if Outcome.PASS in said:
                raise ValueError(f"{where}: PASS always passes: remove it")
        return self

    def action(self, cell: str, tier: str | None, outcome: Outcome, disposition: str, today: date) -> tuple[Action, str]:
        """What the cell's outcome does, and why where that is not the tier's rule."""
        stale = disposition == Disposition.STALE
        if outcome is Outcome.PASS:
            return (self.stale, "its verdict is stale") if stale else (Action.PASS, "")
        said, why = self.outcomes[outcome], ""
        said = self.tiers.get(tier or "", {}).get(outcome, said)
        for entry in self.cells:
            if fnmatchcase(cell, entry.cells) and outcome in entry.outcomes and (not entry.tiers or tier in entry.tiers) and entry.expires >= today:
                said, why = entry.outcomes[outcome], f"{entry.because} (until {entry.expires})"
        if disposition in (Disposition.EXPERIMENTAL, Disposition.QUARANTINED):
            most: Action = getattr(self.at_most, disposition)
            if ORDER.index(said) > ORDER.index(most):
                return most, disposition
        return max(said, self.stale, key=ORDER.index) if stale else said, why

    def expired(self, today: date) -> list[ForCells]:
        return [entry for entry in self.cells if entry.expires < today]


def read_policy(path: Path | None, tiers: tuple[str, ...]) -> Policy:
    """Raises MatrixError with every fault; a tier that the matrix does not declare is one."""
    file = path or POLICY
    policy = read_typed(file, Policy)
    named = [*policy.tiers, *(tier for entry in policy.cells for tier in entry.tiers)]
    unknown = [Problem(Where(str(file)), f"no tier '{tier}' is declared{nearest(tier, tiers)}") for tier in named if tier not in tiers]
    if unknown:
        raise MatrixError(unknown)
    return policy
