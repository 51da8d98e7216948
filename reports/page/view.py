"""What a template is given of one cell: charts, rows in order, texts ready. No judgement is made here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from matrix.outcome import Outcome
from reports.heads import Head
from reports.history import BadRange, first_bad
from reports.metrics import REWARD
from reports.page import forest
from reports.page.charts import Chart, Side, panels, reward_chart
from reports.page.names import css_of, day
from reports.page.provenance import Link, differing, links, provenance
from reports.page.runs import baseline_of, of_refs
from reports.page.samples import StepSamples, read_samples
from reports.readers import read_or_note
from reports.results import CellResult
from reports.show import MARKS, cells
from reports.verdict import Verdict

HISTORY = 120  # verdicts shown as marks
LISTED = 30  # and in words
MOST_RUNS_WITH_SAMPLES = 3


@dataclass(frozen=True)
class CellView:
    """Everything a cell's page shows. charts[0] is the judged metric where any run holds it."""

    result: CellResult
    verdict: Verdict | None
    charts: list[Chart]
    candidates: Side
    baseline: Side
    samples: list[tuple[str, list[StepSamples]]]
    links: list[Link]
    configuration: list[str] = field(default_factory=list)  # how the cell's declaration differs from its baseline's

    @property
    def reward(self) -> Chart | None:
        return self.charts[0] if self.charts and self.charts[0].series else None

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.candidates.runs]

    @property
    def forest_wide(self) -> Markup:
        return Markup(forest.draw(self.comparisons, 920, "wide"))

    @property
    def forest_narrow(self) -> Markup:
        return Markup(forest.draw(self.comparisons, 370, "narrow"))

    @property
    def comparisons(self) -> list[Any]:
        return self.verdict.comparisons if self.verdict else []

    @property
    def statistics(self) -> list[tuple[str, ...]]:
        """One row a statistic: what, both sides, difference, interval, allowed, state with its mark, n, B, whether it decides."""
        return [
            (*cells(c)[:-1], c.state, f"{forest.MARKS[c.state]} {c.state}", str(c.n), str(c.B), "" if c.gates else "shown, does not decide")
            for c in self.comparisons
        ]

    @property
    def provenance(self) -> list[tuple[str, str, str, bool]]:
        """(what, candidates, baseline, whether they differ)."""
        rows = provenance(self.candidates.runs, self.baseline.runs, self.verdict)
        odd = differing(rows)
        return [(*row, row[0] in odd) for row in rows]

    @property
    def history(self) -> list[tuple[str, Head]]:
        """The latest verdicts, newest first, each with its mark."""
        return [(MARKS[Outcome(head.outcome)], head) for head in reversed(self.result.history[-LISTED:])]

    @property
    def strip(self) -> Markup:
        """All listed verdicts as marks, oldest first."""
        heads = self.result.history[-HISTORY:]
        return Markup(
            "".join(
                f'<span class="{css_of(head.outcome)}" title="{head.outcome} {escape(day(head.created))}">{MARKS[Outcome(head.outcome)]}</span>'
                for head in heads
            )
        )

    @property
    def checks(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """(state, text) of the checks that do not hold, and of those that do."""
        found = [(check.state, f"{check.name}: {check.text}") for check in self.verdict.checks] if self.verdict else []
        return [check for check in found if check[0] != "good"], [check for check in found if check[0] == "good"]

    @cached_property
    def bad_range(self) -> BadRange | None:
        return first_bad(self.result.history)

    @property
    def notes(self) -> list[tuple[str, Any]]:
        runs = [*self.verdict.candidates, *self.verdict.baseline] if self.verdict else []
        return [(run.name, note) for run in runs for note in run.notes]


def cell_view(result: CellResult, *, cache: Path | None = None, files: str | None = None, configuration: list[str] | None = None) -> CellView:
    """Read the cell's runs and baseline. Runs that are gone are drawn from the curves the verdict kept.

    cache: folder of parsed curves, for the baseline; a cell's own runs are read when they changed, which is once.
    files: address of the cell's folder in the results, for links from its page.
    """
    verdict = result.verdict()
    rule, metric = (verdict.rule, verdict.rule.metric) if verdict else (None, result.metric or REWARD)
    found = of_refs(verdict.candidates, result.runs, metric, None) if verdict else [read_or_note(path) for path in result.runs]
    candidates, baseline = Side(found), baseline_of(verdict, result.baseline, cache)
    main = reward_chart(candidates, baseline, rule, metric)
    more = [one for one in panels(candidates, baseline, rule) if one.metric != metric]
    samples = [(run.name, steps) for run in found if (steps := read_samples(run.path))]
    return CellView(result, verdict, [main, *more], candidates, baseline, samples[:MOST_RUNS_WITH_SAMPLES], links(found, files), list(configuration or []))
