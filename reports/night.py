"""A night's cells together: which FAILs to page somebody for, so that false alarms stay a small share of the pages.

One cell fails a healthy run once in a hundred nights or less; three hundred cells would do so every night. Benjamini and Hochberg (1995): with p-values sorted
p_1 <= … <= p_m, the largest k with p_k <= q·k/m; the first k are alarms, and at most a share q of them is expected to be false.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from matrix.outcome import Outcome

if TYPE_CHECKING:
    from reports.results import CellResult
    from reports.verdict import Check, Comparison

FALSE_SHARE = 0.05


class Judged(Protocol):
    """A verdict, or the head of one."""

    @property
    def outcome(self) -> str: ...
    @property
    def alarm_p(self) -> float | None: ...


@dataclass(frozen=True)
class Night:
    """alarms: FAILs to act on. held: FAILs that chance explains in a night of so many cells; they stay red and block a gate, but wake nobody.

    threshold: the largest p-value that is an alarm (0 where none is). cells: how many were compared.
    """

    alarms: tuple[str, ...]
    held: tuple[str, ...]
    threshold: float
    cells: int

    @property
    def text(self) -> str:
        if not self.alarms and not self.held:
            return "no cell failed"
        held = f"; {len(self.held)} held back, which chance explains among {self.cells} compared cells: {_named(self.held)}" if self.held else ""
        return f"{len(self.alarms)} alarm(s){': ' + _named(self.alarms) if self.alarms else ''}{held}"


def _named(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def alarm_p(checks: Sequence[Check], comparisons: Sequence[Comparison], looks: int) -> float | None:
    """How often a cell no worse than its margins allow would look this bad: the smallest p-value times the number of chances it had (Bonferroni).

    0 where a check is broken that no chance can break (digests, bands, values that are not finite). None where nothing was compared.
    """
    broken = [check for check in checks if check.state == "bad" and check.outcome is Outcome.FAIL]
    if any(check.p is None for check in broken):
        return 0.0
    values = [c.p_outside for c in comparisons if c.gates and c.p_outside is not None]
    learning = [check.p for check in broken if check.p is not None]
    if not values and not learning:
        return None
    return min(1.0, min([*values, *learning]) * (max(len(values), 1) + 2 * bool(learning)) * looks)


def of_results(results: Sequence[CellResult], share: float = FALSE_SHARE) -> Night:
    """The latest verdict of every cell that has one."""
    return control({result.id: result.latest for result in results if result.latest is not None}, share)


def control(verdicts: Mapping[str, Judged], share: float = FALSE_SHARE) -> Night:
    """Alarms among the cells of one night, by name. Outcomes that are no FAIL (INVALID, INCOMPLETE, …) are facts, not chance: they are not dealt with here."""
    failed = [name for name, verdict in verdicts.items() if verdict.outcome == Outcome.FAIL]
    values = {name: verdict.alarm_p for name, verdict in verdicts.items() if verdict.alarm_p is not None}
    threshold = false_discovery_threshold(list(values.values()), share)
    alarms = tuple(name for name in failed if values.get(name, 0.0) <= threshold)
    return Night(alarms, tuple(name for name in failed if name not in alarms), threshold, len(values))


def false_discovery_threshold(p_values: Sequence[float], share: float) -> float:
    """The largest p-value that is a discovery at false discovery rate `share`; 0 where none is, so that only what chance cannot do remains."""
    ordered = sorted(p_values)
    return max((p for rank, p in enumerate(ordered, start=1) if p <= share * rank / len(ordered)), default=0.0)
