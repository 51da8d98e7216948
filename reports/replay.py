"""Judge again from a verdict's file: the same numbers in, so the same verdict out, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reports.checks.context import Case
from reports.errors import ReportError
from reports.facts import MetricFacts, SyncFacts
from reports.judge import judge_case
from reports.model import Curve, Note, NoteKind, Run
from reports.verdict import SCHEMA_VERSION, Points, RunRef, Verdict


@dataclass(frozen=True)
class StoredRun(Run):
    """A run as a verdict keeps it."""

    ref: RunRef = field(default_factory=lambda: RunRef(name="", path="", format="", sha="", steps_done=0, curve=Points(steps=[], values=[])))

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def recorded(self) -> list[str]:
        return self.ref.recorded

    @cached_property
    def facts(self) -> dict[str, MetricFacts]:
        return self.ref.facts

    @cached_property
    def syncs(self) -> SyncFacts:
        return self.ref.syncs


def replay(verdict: Verdict) -> Verdict:
    """The verdict judged again by this version's code, with the time of the first. Raises ReportError for a schema that does not hold what that needs."""
    if verdict.schema_version != SCHEMA_VERSION:
        raise ReportError(
            f"a verdict of schema {verdict.schema_version} does not hold what judging again needs (schema {SCHEMA_VERSION}): judge its runs again"
        )
    if not verdict.candidates:
        raise ReportError(f"the verdict is about no run ({verdict.headline}): there is nothing to judge again")
    sides = [[stored(ref, verdict.rule.metric) for ref in side] for side in (verdict.candidates, verdict.baseline)]
    case = Case(sides[0], sides[1], verdict.rule, verdict.declared, verdict.pool, verdict.endings)
    return judge_case(case, verdict.look - 1, verdict.baseline_path, verdict.created, verdict.baseline_stale)


def stored(ref: RunRef, metric: str) -> StoredRun:
    """A run with the curves a verdict keeps."""
    parts = [np.arange(first, last + 1, stride, dtype=np.int64) for first, last, stride in ref.grid]
    steps = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    curves = {name: _curve(points, steps) for name, points in ref.curves.items()}
    if ref.curve.steps:
        curves[metric] = _curve(ref.curve, steps)
    manifest: dict[str, Any] = ref.provenance | {"seed": ref.seed, "planned_steps": ref.planned_steps, "labels": ref.labels}
    return StoredRun(
        path=Path(ref.path),
        format=ref.format,
        steps=steps,
        curves=curves,
        notes=tuple(Note(NoteKind(note.kind), note.text, note.where, note.metric) for note in ref.notes),
        manifest=manifest,
        events=tuple(ref.events),
        runner={"infra_class": ref.infra_class} if ref.infra_class else {},
        content_hash=ref.sha,
        ref=ref,
    )


def _curve(points: Points, all_steps: np.ndarray) -> Curve:
    return Curve(np.array(points.steps, dtype=np.int64) if points.steps else all_steps, np.array(points.values, dtype=np.float64))


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Where two dumped verdicts part, as `path: this, that`."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differences(one.get(key), other.get(key), f"{where}.{key}" if where else str(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (ours, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(ours, theirs, f"{where}[{index}]")
    elif one != other:
        yield f"{where}: {str(one)[:80]} became {str(other)[:80]}"
