"""Verdicts on a terminal. Colour helps, the words carry it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from matrix.outcome import Outcome
from reports.night import of_results
from reports.results import CellResult
from reports.verdict import Comparison, Verdict

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.INVALID: "red",
    Outcome.INCOMPLETE: "red",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NO_BASELINE: "cyan",
    Outcome.NOT_RUN: "dim",
    Outcome.INFRA: "magenta",
}
MARKS = {
    Outcome.PASS: "✓",
    Outcome.FAIL: "✗",
    Outcome.INVALID: "⊘",
    Outcome.INCOMPLETE: "◐",
    Outcome.INCONCLUSIVE: "?",
    Outcome.NO_BASELINE: "∅",
    Outcome.NOT_RUN: "·",
    Outcome.INFRA: "⚡",
}


WIDE = 140  # columns where the output is no terminal


def terminal() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDE)


def print_verdict(verdict: Verdict, console: Console | None = None) -> None:
    """Outcome, statistics, reasons, suspects."""
    console = console or terminal()
    look = f", look {verdict.look} of {verdict.looks}" if verdict.level is not None else ""
    against = f"{len(verdict.baseline)} baseline run(s)" if verdict.baseline else "no baseline"
    console.print(f"[{STYLES[verdict.outcome]}]{MARKS[verdict.outcome]} {escape(verdict.title)}[/]  {len(verdict.candidates)} run(s) against {against}{look}")
    if verdict.comparisons:
        console.print(_statistics(verdict))
    for reason in verdict.reasons:
        console.print(f"  • {escape(reason)}")
    if verdict.pool:
        runs = sum(group.runs for group in verdict.pool)
        console.print(f"  spread pooled with {len(verdict.pool)} other baseline(s) of the family, {runs} runs")
    for suspect in verdict.suspects:
        console.print(f"  suspect: [bold]{escape(suspect.name)}[/]: {escape(suspect.evidence)}")
    for run in verdict.candidates:
        for note in run.notes:
            console.print(f"  [dim]{escape(run.name)}: {escape(note.kind)}: {escape(note.text)}{f' ({escape(note.where)})' if note.where else ''}[/]")


def _statistics(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in ("statistic", "candidate", "baseline", "difference", "interval", "allowed", ""):
        table.add_column(name, justify="left" if name in ("statistic", "") else "right", style="bold" if name == "" else None)
    for comparison in verdict.comparisons:
        table.add_row(*cells(comparison))
    return table


def cells(comparison: Comparison) -> tuple[str, ...]:
    """One statistic as text: what it is, both sides, difference, interval, margin, state."""
    is_ratio = comparison.scale == "ratio"
    value = (lambda number: "–" if number is None else f"{number:.2f}×") if is_ratio else (lambda number: "–" if number is None else f"{number:+.4f}")
    interval = "–" if comparison.low is None else f"{value(comparison.low)} … {value(comparison.high)}"
    low = "any" if comparison.margin_low is None else value(comparison.margin_low)
    high = "any" if comparison.margin_high is None else value(comparison.margin_high)
    allowed = f"δ {comparison.delta:g}" if comparison.state == "descriptive" else f"{low} … {high}"
    return (
        comparison.title,
        f"{comparison.candidate_mean:.4f}",
        f"{comparison.baseline_mean:.4f}",
        value(comparison.difference),
        interval,
        allowed,
        comparison.state,
    )


def print_table(results: Sequence[CellResult], console: Console | None = None) -> None:
    """One line per cell, and counts that add up to the number of cells."""
    console = console or terminal()
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in ("cell", "outcome", "disposition", "seeds", "age", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name in ("cell", "outcome"))
    for result in results:
        style = STYLES[result.outcome]
        seeds = ", ".join(str(seed) for seed in result.seeds) or "–"
        outcome = f"[{style}]{MARKS[result.outcome]} {escape(result.title)}[/]"
        table.add_row(escape(result.id), outcome, result.disposition, seeds, result.age, escape(result.reasons[0] if result.reasons else ""))
    console.print(table)
    counts = [(outcome, sum(result.outcome is outcome for result in results)) for outcome in Outcome]
    console.print(f"{len(results)} cells: " + ", ".join(f"{count} {outcome}" for outcome, count in counts if count))
    if any(result.outcome is Outcome.FAIL for result in results):
        console.print(of_results(results).text)


def print_baseline(folder: Path, console: Console | None = None) -> None:
    """Provenance, and what each statistic's mean and spread are over the runs."""
    from reports.baseline import read_folder, read_provenance

    console = console or terminal()
    provenance, runs = read_provenance(folder), read_folder(folder)
    facts: dict[str, Any] = provenance.model_dump(exclude={"runs", "schema_version", "rule", "files", "claim", "expires"}, exclude_none=True)
    facts |= {f"claimed {name}": value for name, value in (provenance.claim.model_dump() if provenance.claim else {}).items()}
    for name, value in facts.items():
        if value not in ([], {}, ""):
            console.print(f"{name:<14} {escape(str(value))}")
    if provenance.files:
        console.print(f"{'files':<14} {len(provenance.files)} in the store, {sum(blob.size for blob in provenance.files)} bytes")
    console.print(f"{'valid':<14} {provenance.stale() or f'to {provenance.last_day}'}")
    console.print(f"{'runs':<14} {len(runs)}: seeds {', '.join(str(run.seed) for run in runs)}; every file matches its hash")
    curves = [run.curves[provenance.metric] for run in runs]
    finals = [float(curve.values[-max(len(curve.values) // 4, 1) :].mean()) for curve in curves]
    wholes = [float(curve.values.mean()) for curve in curves]
    for name, values in (("last quarter", finals), ("whole curve", wholes)):
        mean = sum(values) / len(values)
        sd = (sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)) ** 0.5
        console.print(f"{name:<14} {provenance.metric} mean {mean:.4f}, sd between runs {sd:.4f}")
