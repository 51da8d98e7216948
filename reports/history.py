"""A cell's verdicts over commits: between which two of them it broke."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matrix.outcome import Outcome
from reports.heads import Head

GOOD = (Outcome.PASS,)
BAD = (Outcome.FAIL, Outcome.INCOMPLETE)  # the code may be why; INVALID, INFRA, INCONCLUSIVE, NO_BASELINE and NOT_RUN say nothing about a commit

TELLING = GOOD + BAD


@dataclass(frozen=True)
class BadRange:
    """The first bad verdict of the streak that lasts until now, and the last good one before it (None: it was never seen good).

    `before` and `after`: their commits, None where the verdict names none or several.
    """

    good: Head | None
    bad: Head
    before: str | None
    after: str | None

    @property
    def same_commit(self) -> bool:
        return self.before is not None and self.before == self.after

    def text(self) -> str:
        """One sentence."""
        if self.good is None:
            return f"bad since {_named(self.bad, self.after)}; no verdict before it was good"
        if self.same_commit:
            return f"good and bad at the same commit ({_named(self.bad, self.after)}): a change of the code is not why; look at seeds and machines"
        return f"good at {_named(self.good, self.before)}, bad since {_named(self.bad, self.after)}"


def first_bad(history: Sequence[Head]) -> BadRange | None:
    """Of verdicts, oldest first; None where the last verdict that says anything is good, or none does. Verdicts of another recipe are not compared."""
    last = next((head for head in reversed(history) if head.outcome in TELLING), None)
    if last is None or last.outcome not in BAD:
        return None
    telling = [head for head in history if head.outcome in TELLING and head.science_hash == last.science_hash]
    streak = len(telling) - 1
    while streak and telling[streak - 1].outcome in BAD:
        streak -= 1
    good = telling[streak - 1] if streak else None
    return BadRange(good, telling[streak], commit_of(good) if good else None, commit_of(telling[streak]))


def commit_of(head: Head) -> str | None:
    """The one commit all its runs were made at."""
    return head.commits[0] if len(head.commits) == 1 else None


def _named(head: Head, commit: str | None) -> str:
    day = head.created[:16].replace("T", " ")
    dirty = " with local changes" if head.dirty else ""
    return f"{commit[:12]}{dirty} ({day})" if commit else f"the verdict of {day}"
