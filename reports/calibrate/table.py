"""The operating characteristic as Markdown, for docs/verdict.md."""

from __future__ import annotations

from pathlib import Path

from reports.calibrate import Characteristic, Rates
from reports.calibrate.scenarios import NOISIER
from reports.errors import ReportError
from reports.recipes import Held
from reports.stats.summary import TITLES

NARROW = 2.0  # a margin below this many between-run spreads can hardly be decided
MODELS = {
    "resampled": "Curves resampled by run and by blocks of residuals",
    "fitted": "Curves from a fitted model of learning",
}


def as_markdown(found: Characteristic, held: Held) -> str:
    """Spread and margin of each statistic; then by model, baseline size and scenario PASS / FAIL / undecided in per cent after up to three candidates."""
    rule = held.rule
    assert rule.delta is not None
    levels = ", ".join(f"{level:.4f} for B = {size}" for size, level in found.level.items())
    lines = [
        f"Recipe `{held.name}`: {found.runs} stored runs, {found.steps} steps of {rule.metric}, {rule.sided}-sided, spread {rule.spread}, α {rule.alpha:g} "
        f"over {rule.max_seeds} look(s): {levels} at each. {found.trials} trials a number.",
        "",
        "| statistic | spread between runs (sd) | δ | δ / sd | " + " | ".join(f"least δ, B = {size}" for size in found.sizes) + " |",
        "|---|---|---|---|" + "---|" * len(found.sizes),
        *_margins(found, held),
        *(line for text in warnings(found, held) for line in ("", f"**Warning.** {text}")),
    ]
    for model, sizes in found.rates.items():
        lines += ["", f"{MODELS[model]}:", "", *_rates(found, sizes, rule.max_seeds, rule.delta.residual is not None)]
    if "fitted" not in found.rates:
        lines += ["", "No growth curve describes the stored runs' mean, so there is no fitted model."]
    note = f"PASS / FAIL / undecided in per cent of trials. B: baseline runs; n: candidates, looked at one by one. B = {found.runs} is what is stored"
    more = [size for size in found.sizes if size > found.runs]
    lines += ["", note + (f"; B = {', '.join(map(str, more))} is what more of the same kind would give." if more else ".")]
    return "\n".join(lines)


def warnings(found: Characteristic, held: Held) -> list[str]:
    """Margins below twice the spread, in words."""
    assert held.rule.delta is not None
    narrow = [(name, getattr(held.rule.delta, name), sd) for name, sd in found.sd.items() if name != "residual"]
    return [
        f"δ of the {TITLES[name]} is {delta:g}, below twice the spread between runs ({sd:.4g}): most healthy runs stay undecided."
        for name, delta, sd in narrow
        if delta is not None and delta < NARROW * sd
    ]


def _margins(found: Characteristic, held: Held) -> list[str]:
    lines = []
    for name, sd in found.sd.items():
        delta = getattr(held.rule.delta, name)
        if delta is None:
            continue
        ratio = name == "residual"
        least = [f"{found.least_delta[name][size]:.2f} ×" if ratio else f"{found.least_delta[name][size]:.4f}" for size in found.sizes]
        share = "–" if ratio else f"{delta / sd:.1f}{' (narrow)' if delta < NARROW * sd else ''}"
        lines.append(f"| {TITLES[name]} | {sd:.4f} | {delta:g}{' ×' if ratio else ''} | {share} | {' | '.join(least)} |")
    return lines


def _rates(found: Characteristic, sizes: dict[int, dict[str, Rates]], looks: int, judged: bool) -> list[str]:
    heads = [f"B = {size}, n {'=' if look == 1 else '≤'} {look}" for size in found.sizes for look in range(1, looks + 1)]
    lines = [f"| candidate | should be | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for scenario in found.scenarios:
        rates = [sizes[size][scenario.name] for size in found.sizes]
        cells = [_cell(rate.passed[look], rate.failed[look]) for rate in rates for look in range(looks)]
        wanted = scenario.wanted if judged or scenario.name != NOISIER else "noise is not judged"
        lines.append(f"| {scenario.name} | {wanted} | {' | '.join(cells)} |")
    return lines


def write_between_marks(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- calibrate NAME -->` and the `<!-- end calibrate -->` after it. Raises ReportError where the marks are missing."""
    document = path.read_text(encoding="utf-8")
    begin, end = f"<!-- calibrate {name} -->", "<!-- end calibrate -->"
    start = document.find(begin)
    stop = document.find(end, start)
    if start < 0 or stop < 0:
        raise ReportError(f"{path}: no lines {begin} and {end} to write between")
    path.write_text(f"{document[: start + len(begin)]}\n{text}\n{document[stop:]}", encoding="utf-8")


def _cell(passed: float, failed: float) -> str:
    return f"{_percent(passed)}/{_percent(failed)}/{_percent(max(0.0, 1 - passed - failed))}"


def _percent(rate: float) -> str:
    """Per cent, with a decimal near the ends; never 0 or 100 for what happened, or failed to happen, once."""
    if rate < 1e-9 or rate > 1 - 1e-9:
        return f"{100 * rate:.0f}"
    text = f"{100 * rate:.1f}" if rate < 0.05 or rate > 0.95 else f"{100 * rate:.0f}"
    return {"0.0": "<0.1", "100.0": ">99.9"}.get(text, text)
