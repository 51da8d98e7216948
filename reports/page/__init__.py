"""Static pages: one of all cells, one per cell, a PNG and JSON beside each. They open from disk, load nothing, and work without scripts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matrix.outcome import Outcome
from reports.results import CellResult, read_results

if TYPE_CHECKING:
    from reports.page.view import CellView


def write(root: Path, out: Path, matrix_root: Path | None = None) -> Path:
    """Write the pages of a results root into `out` and return index.html. Every declared cell appears. Raises ReportError as `read_results` does."""
    from reports.night import control
    from reports.page.figure import write_png
    from reports.page.render import render
    from reports.page.view import cell_view

    results = read_results(root, matrix_root)
    (out / "cells").mkdir(parents=True, exist_ok=True)
    views = [cell_view(result) for result in results]
    now = datetime.now(UTC)
    for view in views:
        base = out / "cells" / view.result.key
        base.with_name(f"{base.name}.html").write_text(render("cell.html", view=view, now=now), encoding="utf-8")
        _json(base.with_name(f"{base.name}.json"), _cell_record(view))
        if view.reward:
            write_png(
                base.with_name(f"{base.name}.png"),
                f"{view.result.id}: {view.result.title}",
                _in_picture(view),
                view.verdict.comparisons if view.verdict else [],
            )
    _json(out / "report.json", {"schema_version": 1, "created": now.isoformat(timespec="seconds"), "cells": [_summary(result) for result in results]})
    index = out / "index.html"
    night = control({result.id: result.verdict for result in results if result.verdict})
    index.write_text(render("index.html", views=views, now=now, counts=_counts(results), night=night), encoding="utf-8")
    return index


def _in_picture(view: CellView) -> list[Any]:
    """Reward and, where it is recorded, the log-prob gap."""
    from reports.metrics import GAP_MEAN

    return view.charts[:1] + [chart for chart in view.charts[1:] if chart.metric == GAP_MEAN]


def _counts(results: list[CellResult]) -> list[tuple[Outcome, int]]:
    """How many cells of each outcome; they add up to the number of cells."""
    return [(outcome, count) for outcome in Outcome if (count := sum(result.outcome is outcome for result in results))]


def _summary(result: CellResult) -> dict[str, Any]:
    return {
        "cell": result.id,
        "key": result.key,
        "declared": result.declared,
        "outcome": str(result.outcome),
        "title": result.title,
        "disposition": result.disposition,
        "recipe": result.recipe,
        "model": result.model,
        "seeds": list(result.seeds),
        "time": result.latest.time.isoformat() if result.latest else None,
        "reasons": list(result.reasons),
    }


def _cell_record(view: CellView) -> dict[str, Any]:
    history = [{"time": judgement.time.isoformat(), "outcome": str(judgement.outcome), "file": judgement.path.name} for judgement in view.result.history]
    return {**_summary(view.result), "history": history, "verdict": json.loads(view.verdict.model_dump_json()) if view.verdict else None}


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
