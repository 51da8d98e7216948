"""The gate's Markdown, for a build's annotation and a job summary: what it decided and why, then table, curves and suspects as `reports` draws them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ci.policy import Action

if TYPE_CHECKING:
    from ci.gate import Decision, Gate

LIMIT = 1 << 20  # bytes: Buildkite's for an annotation, GitHub's for a summary


def markdown(gate: Gate, results: Path, matrix_root: Path | None = None, limit: int = LIMIT) -> str:
    """The whole text, of at most `limit` bytes."""
    head = "\n".join(_head(gate)) + "\n\n"
    return head + _cells(gate, results, matrix_root, limit - len(head.encode()))


def _head(gate: Gate) -> list[str]:
    from reports.site.annotation import escape

    code = gate.exit_code
    lines = [f"### Gate: {'passes' if code == 0 else f'blocks, exit {code}'}", "", escape(gate.status), ""]
    for action, title in ((Action.BLOCK, "blocks"), (Action.WARN, "warns")):
        lines += [f"- {title}: {_decision(one)}" for one in gate.of(action)]
    lines += [f"- blocks: step {escape(step)}" for step in gate.broken]
    lines += [f"- no cell was to run: {escape(reason)}" for reason in gate.nothing]
    lines += [f"- {escape(note)}" for note in gate.notes]
    lines += [f"- {gate.unselected} more cells were not selected"] if gate.unselected else []
    return lines


def _decision(one: Decision) -> str:
    from reports.site.annotation import escape

    standing = one.standing
    about = [f"tier {one.tier}", standing.disposition, one.why if one.why != standing.disposition else "", standing.remark, one.note]
    return f"<code>{escape(standing.cell)}</code> **{standing.title}** ({escape('; '.join(part for part in about if part))}): {escape(standing.reason[:300])}"


def _cells(gate: Gate, results: Path, matrix_root: Path | None, limit: int) -> str:
    from reports.site.annotation import of_results

    names = [one.standing.cell for one in gate.decisions]
    return of_results(results, matrix_root, cells=names, limit=limit) if names else ""
