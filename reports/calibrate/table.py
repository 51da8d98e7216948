"""The operating characteristic as Markdown, for docs/verdict.md."""

from __future__ import annotations

from pathlib import Path

from reports.calibrate import Characteristic
from reports.errors import ReportError
from reports.recipes import Held
from reports.stats.summary import TITLES

NARROW = 2.0  # a margin below this many between-run spreads can rarely be decided by one run


def as_markdown(found: Characteristic, held: Held) -> str:
    """Spread and margin of each statistic, then per scenario PASS / FAIL / undecided in per cent after one, up to two, up to three candidates."""
    rule = held.rule
    assert rule.delta is not None
    lines = [
        f"Recipe `{held.name}`: {found.runs} baseline runs of {found.steps} steps, {rule.sided}-sided, α {rule.alpha:g} over {rule.max_seeds} look(s), "
        f"{found.level:.4f} at each; {found.trials} resampled trials a row.",
        "",
        "| statistic | spread between runs (sd) | δ | δ / sd | least δ that one healthy run passes (99 %) |",
        "|---|---|---|---|---|",
    ]
    for name, sd in found.sd.items():
        delta = getattr(rule.delta, name)
        if delta is not None:
            shown = f"{delta:g} ×" if name == "residual" else f"{delta:g}"
            share = "–" if name == "residual" else f"{delta / sd:.1f}{' (narrow)' if delta < NARROW * sd else ''}"
            least = f"{found.least_delta[name]:.2f} ×" if name == "residual" else f"{found.least_delta[name]:.4f}"
            lines.append(f"| {TITLES[name]} | {sd:.4f} | {shown} | {share} | {least} |")
    looks = range(1, rule.max_seeds + 1)
    heads = " | ".join("1 candidate" if look == 1 else f"up to {look}" for look in looks)
    lines += ["", f"| candidate | should be | {heads} |", f"|---|---|{'---|' * rule.max_seeds}"]
    for scenario, rates in zip(found.scenarios, found.rates, strict=True):
        cells = " | ".join(_cell(rates.passed[look - 1], rates.failed[look - 1]) for look in looks)
        lines.append(f"| {scenario.name} | {scenario.wanted} | {cells} |")
    lines += ["", "Each cell: PASS / FAIL / undecided in per cent of trials."]
    return "\n".join(lines)


def write_between_marks(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- calibrate NAME -->` and `<!-- end calibrate -->` in a document. Raises ReportError where the marks are missing."""
    document = path.read_text(encoding="utf-8")
    begin, end = f"<!-- calibrate {name} -->", "<!-- end calibrate -->"
    start = document.find(begin)
    stop = document.find(end, start)
    if start < 0 or stop < 0:
        raise ReportError(f"{path}: no lines {begin} and {end} to write between")
    path.write_text(f"{document[: start + len(begin)]}\n{text}\n{document[stop:]}", encoding="utf-8")


def _cell(passed: float, failed: float) -> str:
    return f"{_percent(passed)} / {_percent(failed)} / {_percent(max(0.0, 1 - passed - failed))}"


def _percent(rate: float) -> str:
    """Per cent; never 0 or 100 for what happened, or failed to happen, once."""
    if rate in (0, 1):
        return f"{100 * rate:.0f}"
    text = f"{100 * rate:.1f}"
    return {"0.0": "< 0.1", "100.0": "> 99.9"}.get(text, text)
