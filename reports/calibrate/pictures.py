"""The three pictures of docs/verdict.md, drawn from a stored baseline and the arithmetic of the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from matrix.rule import JudgeRule
from reports.calibrate.resample import fit
from reports.checks.context import Case
from reports.model import Run
from reports.stats.intervals import difference, inside, outside
from reports.stats.looks import level_per_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREEN, RED, AMBER, INK, SOFT = "#1a7f4b", "#b3261e", "#b26a00", "#222222", "#8a8f98"
NIGHTS = 20_000
NAMES = ("curve.svg", "margin.svg", "looks.svg")


def write(runs: Sequence[Run], rule: JudgeRule, into: Path) -> list[Path]:
    """Write the three SVGs. runs: a stored baseline; rule: its recipe's."""
    import matplotlib as mpl

    mpl.use("Agg")
    into.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context({"svg.hashsalt": "verdict", "svg.fonttype": "none", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        for name, figure in zip(NAMES, (curve(runs, rule), margin(), looks(len(runs), rule)), strict=True):
            figure.savefig(into / name, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
            written.append(into / name)
    return written


def curve(runs: Sequence[Run], rule: JudgeRule) -> Figure:
    """The baseline's band, one candidate that learns more slowly, and the windows."""
    case = Case(runs, (), rule)
    values, steps = case.values(runs), case.common
    model = fit(values)
    slow = model.draw(np.random.default_rng(4), (1, 1), stretch=1.5)[0, 0]
    figure, axes = _figure(7.2, 3.2)
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    axes.fill_between(steps, mean - 2 * sd, mean + 2 * sd, color=SOFT, alpha=0.3, lw=0, label=f"baseline, {len(runs)} runs: mean ± 2 sd")
    axes.plot(steps, mean, color=INK, lw=1.2)
    axes.plot(steps, slow, color=RED, lw=1.0, label="a candidate that learns 1.5 × slower")
    top = float(mean.max()) + 0.09
    spans = (("first window", case.grid.first, "a policy or sampler that\ndiffers before training"), ("last window", case.grid.last, "plateau, collapse"))
    for name, window, sees in spans:
        at = steps[window]
        axes.axvspan(at[0], at[-1], color="#2f5d9b", alpha=0.12, lw=0)
        axes.text(at.mean(), top, name, ha="center" if name != "first window" else "left", va="bottom", color="#2f5d9b", fontweight="bold")
        axes.text(at[0] if name == "first window" else at.mean(), float(mean.min()) - 0.22, sees, va="bottom", color="#2f5d9b", fontsize=8.5,
                  ha="left" if name == "first window" else "center")  # fmt: skip
    axes.annotate("", (steps[0], top - 0.02), (steps[-1], top - 0.02), arrowprops={"arrowstyle": "<->", "color": SOFT})
    axes.text(steps[len(steps) // 2], top, "whole curve: slowness", ha="center", va="bottom", color=INK)
    axes.set(xlabel="step", ylabel="reward", ylim=(float(mean.min()) - 0.24, top + 0.06))
    axes.legend(loc="center right", frameon=False, fontsize=9)
    return figure


def margin() -> Figure:
    """Where an interval lies against the margin decides."""
    figure, axes = _figure(7.2, 2.7)
    axes.axvspan(-1, 1, color=GREEN, alpha=0.12, lw=0)
    rows = (
        (0.15, 0.5, GREEN, "inside: PASS, if all statistics are"),
        (-0.95, 0.6, AMBER, "over the edge: INCONCLUSIVE, one more seed"),
        (-0.45, 1.1, AMBER, "too wide to say: INCONCLUSIVE"),
        (-1.9, 0.45, RED, "wholly outside: FAIL, if any is"),
        (1.75, 0.4, RED, "outside on the good side: FAIL two-sided, flagged one-sided"),
    )
    for row, (at, half, colour, words) in enumerate(rows):
        axes.plot([at - half, at + half], [-row, -row], color=colour, lw=2.5, solid_capstyle="butt")
        axes.plot(at, -row, "o", color=colour, ms=6)
        axes.text(2.5, -row, words, va="center", color=colour)
    for edge in (-1, 1):
        axes.axvline(edge, color=GREEN, lw=1.2)
    axes.axvline(0, color=SOFT, lw=0.8, ls=":")
    axes.set(xlim=(-2.6, 2.45), ylim=(-len(rows) + 0.4, 0.6), xticks=[-1, 0, 1], yticks=[], xlabel="candidate minus baseline")
    axes.set_xticklabels(["−δ", "0", "+δ"])
    axes.spines["left"].set_visible(False)
    return figure


def looks(runs: int, rule: JudgeRule) -> Figure:
    """How often one statistic passes and fails, against the true difference, after one and after all looks: δ is six spreads."""
    figure, axes = _figure(7.2, 3.0)
    true = np.linspace(-2, 0.0, 41)
    for baseline, style in ((5, "--"), (runs, "-")):
        passed, failed = _decided(true, baseline, rule)
        for values, colour, word in ((passed, GREEN, "PASS"), (failed, RED, "FAIL")):
            axes.plot(true, 100 * values[-1], color=colour, ls=style, lw=1.8, label=f"{word}, {baseline} baseline runs")
    axes.axvline(-1, color=INK, lw=1)
    axes.axhline(100 * rule.alpha, color=SOFT, lw=0.8, ls=":")
    axes.text(-1.98, 100 * rule.alpha + 2, f"α = {rule.alpha:g}", color=SOFT, fontsize=9)
    axes.set(xlabel="true difference of the candidate", ylabel=f"% of nights, up to {rule.max_seeds} seeds", xticks=[-2, -1.5, -1, -0.5, 0], ylim=(-2, 103))
    axes.set_xticklabels(["−2 δ", "−1.5 δ", "−δ", "−δ/2", "0"])
    axes.legend(loc="center left", frameon=False, fontsize=9, bbox_to_anchor=(1.0, 0.5))
    return figure


def _decided(true: np.ndarray, baseline: int, rule: JudgeRule, spreads: float = 6.0) -> tuple[np.ndarray, np.ndarray]:
    """float64[looks, len(true)] each: share of nights that passed and failed after each look; δ is 1, the spread between runs 1/`spreads`."""
    rng, level = np.random.default_rng(0), level_per_look(baseline, rule.max_seeds, rule.alpha, rule.spread)
    theirs, ours = rng.normal(0, 1 / spreads, (NIGHTS, baseline)), rng.normal(0, 1 / spreads, (NIGHTS, rule.max_seeds))
    passed, failed = np.zeros((rule.max_seeds, len(true))), np.zeros((rule.max_seeds, len(true)))
    for column, shift in enumerate(true):
        ok, bad = np.zeros(NIGHTS, bool), np.zeros(NIGHTS, bool)
        for look in range(rule.max_seeds):
            found = difference(ours[:, : look + 1] + shift, theirs, 0.0, level, rule.spread)
            still = ~ok & ~bad
            ok, bad = ok | (still & inside(found, -1, 1)), bad | (still & outside(found, -1, 1))
            passed[look, column], failed[look, column] = ok.mean(), bad.mean()
    return passed, failed


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height))
