"""Outcomes of a cell, their exit codes, and the dispositions that stand beside them."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What the evidence says about a cell; never what one would like to do about it (see `Disposition`)."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"  # more seeds wanted
    INCOMPLETE = "INCOMPLETE"  # planned steps not reached
    INVALID = "INVALID"  # not comparable, or a broken file
    INFRA = "INFRA"  # lost before or outside training
    NO_BASELINE = "NO_BASELINE"
    NOT_RUN = "NOT_RUN"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self]


EXIT_CODES: dict[Outcome, int] = {
    Outcome.PASS: 0,
    Outcome.FAIL: 1,
    Outcome.INCONCLUSIVE: 10,
    Outcome.INCOMPLETE: 11,
    Outcome.INVALID: 12,
    Outcome.INFRA: 13,
    Outcome.NO_BASELINE: 15,
    Outcome.NOT_RUN: 16,
}

# Most severe first: a wrong result outranks a missing one, a missing one outranks an undecided one.
SEVERITY: tuple[Outcome, ...] = (
    Outcome.FAIL,
    Outcome.INVALID,
    Outcome.INCOMPLETE,
    Outcome.INCONCLUSIVE,
    Outcome.NO_BASELINE,
    Outcome.NOT_RUN,
    Outcome.INFRA,
    Outcome.PASS,
)


class Disposition(StrEnum):
    """What a cell's outcome means for a gate."""

    REQUIRED = "required"
    QUARANTINED = "quarantined"
    STALE = "stale"
    EXPERIMENTAL = "experimental"


def most_severe(outcomes: list[Outcome]) -> Outcome:
    """The outcome a set of cells comes to. Raises ValueError on an empty set: nothing judged is not a pass."""
    if not outcomes:
        raise ValueError("no outcomes: nothing was judged")
    return min(outcomes, key=SEVERITY.index)
