"""The gate's Markdown, for a build's annotation and a job summary: what it decided and why, then table, curves and suspects as `reports` draws them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ci.policy import Action

if TYPE_CHECKING:
    from ci.gate import Decision, Gate
    from reports.results import CellResult

LIMIT = 1 << 20  # bytes: Buildkite's for an annotation, GitHub's for a summary
HEAD = LIMIT // 4  # of them for what was decided; the table tells the rest of a night in which everything fails


def markdown(gate: Gate, results: Path, matrix_root: Path | None = None, limit: int = LIMIT, report: str | None = None) -> str:
    """The whole text, of at most `limit` bytes. `report`: the site's folder among the build's artifacts, for links and pictures."""
    head = "\n".join(_fitted(_head(gate), min(HEAD, limit // 2))) + "\n\n"
    return head + _cells(gate, results, matrix_root, limit - len(head.encode()), report)


def _head(gate: Gate) -> list[str]:
    from reports.site.annotation import escape

    code = gate.exit_code
    lines = [f"### Gate: {'passes' if code == 0 else f'blocks, exit {code}'}", "", escape(gate.status), ""]
    for action, title in ((Action.BLOCK, "blocks"), (Action.WARN, "warns")):
        lines += [f"- {title}: {_decision(one)}" for one in gate.of(action)]
    lines += [f"- blocks: step {escape(step)}" for step in gate.broken]
    lines += [f"- host <code>{escape(host)}</code> lost {count} runs: look at it before it is given more" for host, count in gate.hosts.items() if count > 1]
    lines += [f"- no cell was to run: {escape(reason)}" for reason in gate.nothing]
    lines += [f"- {escape(note)}" for note in gate.notes]
    return lines + ([f"- {gate.unselected} more cells were not selected"] if gate.unselected else [])


def _decision(one: Decision) -> str:
    from reports.site.annotation import escape

    standing = one.standing
    about = [f"tier {one.tier}", standing.disposition, one.why if one.why != standing.disposition else "", standing.remark, one.note]
    return f"<code>{escape(standing.cell)}</code> **{standing.title}** ({escape('; '.join(part for part in about if part))}): {escape(standing.reason[:300])}"


def _fitted(lines: list[str], limit: int) -> list[str]:
    """The first lines that fit, and how many did not."""
    kept: list[str] = []
    size = 0
    for number, line in enumerate(lines):
        size += len(line.encode()) + 1
        if size > limit - 80:
            return [*kept, f"- … and {len(lines) - number} more, which gate.json lists"]
        kept.append(line)
    return kept


def _cells(gate: Gate, results: Path, matrix_root: Path | None, limit: int, report: str | None) -> str:
    """The table, details and curves of the gate's cells, as `reports` writes them."""
    from reports.night import of_results as night_of
    from reports.results import read_results
    from reports.site.annotation import annotation
    from reports.site.rows import site

    wanted = {one.standing.cell for one in gate.decisions}
    chosen = [result for result in read_results(results, matrix_root) if result.id in wanted]
    if not chosen:
        return ""
    base = f"artifact://{report}" if report else None
    return annotation(
        site(chosen, night_of(chosen), datetime.now(UTC)),
        limit=limit,
        link=(lambda row: f"{base}/{row.page}") if base else None,
        pictures={result.id: f"{base}/cells/{result.key}.png" for result in chosen if base and result.latest},
        curves={result.id: curve for result in chosen if result.outcome != "PASS" and (curve := _curve(result))},
    )


def _curve(result: CellResult) -> list[float]:
    """The reward of the last seed by step."""
    verdict = result.verdict()
    return verdict.candidates[-1].curve.values if verdict and verdict.candidates else []
