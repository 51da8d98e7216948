"""Two baselines against each other: statistics with their intervals, and what differs in where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from matrix.rule import JudgeRule
from reports.baseline import Provenance, read_folder, read_provenance
from reports.checks import convergence
from reports.checks.context import Case
from reports.errors import ReportError
from reports.model import Run

COMPARED = ("science_hash", "recipe", "metric", "planned_steps", "commits", "dirty", "machine", "devices", "versions", "claim")


@dataclass(frozen=True)
class Difference:
    """lines: what a person reads. The first of the two sides is the older one."""

    lines: tuple[str, ...]
    old: tuple[Path, Sequence[Run]]
    new: tuple[Path, Sequence[Run]]
    rule: JudgeRule

    def write(self, out: Path) -> Path:
        """A page with both sides' curves."""
        from reports.compare import write_comparison

        groups = {f"{self.old[0].name} (old)": self.old[1], f"{self.new[0].name} (new)": self.new[1]}
        return write_comparison(groups, out, metric=self.rule.metric, title=f"{self.new[0].name} against {self.old[0].name}", rule=self.rule)


def difference(folder: Path, other: Path | None, recipe: str | None = None) -> Difference:
    """`folder` against `other`, or against the frozen baseline of its science. Raises ReportError where there is none, or no rule to compare by."""
    told = read_provenance(folder)
    if other is None:
        if not told.frozen:
            raise ReportError(f"{folder} was never replaced: it is the frozen baseline itself; name another one to compare with")
        other = folder / told.frozen
    theirs = read_provenance(other)
    if told.metric != theirs.metric:
        raise ReportError(f"{folder} is judged by {told.metric}, {other} by {theirs.metric}: they cannot be compared")
    rule = _rule(told, folder, recipe)
    new, old = read_folder(folder), read_folder(other)
    comparisons, _ = convergence.compare(Case(new, old, rule))
    lines = [f"{folder.name}: {len(new)} runs of {told.date}; against {other.name}: {len(old)} runs of {theirs.date}"]
    lines += [f"{comparison.state:<12} {comparison.text}" for comparison in comparisons] or ["no step is in all runs: nothing can be compared"]
    shared = {run.sha for run in new} & {run.sha for run in old}
    lines += [f"{len(shared)} run(s) are in both"] if shared else []
    ours, others = told.model_dump(), theirs.model_dump()
    lines += [f"{name}: {others[name]} -> {ours[name]}" for name in COMPARED if ours[name] != others[name]]
    return Difference(tuple(lines), (other, old), (folder, new), rule)


def _rule(told: Provenance, folder: Path, recipe: str | None) -> JudgeRule:
    """The recipe's rule where one is named, else the one the baseline was recorded by, else the matrix's of its recipe."""
    from reports.recipes import for_runs

    if recipe is None and told.rule is not None:
        try:
            return JudgeRule.model_validate(told.rule)
        except ValidationError:
            pass  # recorded by another version: the recipe of today says how to compare
    held = for_runs([], recipe or told.recipe) if recipe or told.recipe else None
    if held is None:
        raise ReportError(f"{folder} names no recipe: say by which rule to compare with --recipe")
    return held.rule
