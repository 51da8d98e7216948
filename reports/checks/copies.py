"""Copies: one curve that is counted twice, or shown as another seed, another machine, another commit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from matrix.outcome import Outcome
from reports.checks.context import Case
from reports.model import Run, fingerprint
from reports.verdict import Check

LEAST_DISTINCT_VALUES = 5  # flat curves (all zero, all one) are alike without being copies


def check(case: Case) -> Iterator[Check]:
    """One check a pair of equal curves; one good check where there is none."""
    seen: dict[str, tuple[Run, str]] = {}
    found = 0
    for side, runs in (("baseline ", case.baseline), ("", case.candidates)):
        for run in runs:
            curve = case.curve(run)
            if len(np.unique(curve.values)) < LEAST_DISTINCT_VALUES:
                continue
            first, first_side = seen.setdefault(fingerprint(curve), (run, side))
            if first is not run:
                found += 1
                yield _copied(run, side, first, first_side)
    if not found:
        yield Check(stage="integrity", name="copy", state="good", outcome=Outcome.INVALID, text="no two curves are equal")


def _copied(run: Run, side: str, first: Run, first_side: str) -> Check:
    claims = [f"{what} {ours} and {theirs}" for what, ours, theirs in _claims(run, first) if ours != theirs]
    words = f"claimed as different ({'; '.join(claims)})" if claims else "one run given twice"
    text = f"{side}{run.name} has the same curve, value for value, as {first_side}{first.name}: {words}; a copy is no second measurement"
    return Check(stage="integrity", name="copy", run=side + run.name, state="bad", outcome=Outcome.INVALID, text=text)


def _claims(run: Run, first: Run) -> list[tuple[str, object, object]]:
    pairs = [("seed", run.seed, first.seed)]
    out: list[tuple[str, object, object]] = [(name, a, b) for name, a, b in pairs]
    out.append(("commit", run.manifest.get("commit"), first.manifest.get("commit")))
    out.append(("host", host_name(run), host_name(first)))
    out.append(("cell", run.labels.get("cell"), first.labels.get("cell")))
    return out


def host_name(run: Run) -> object:
    host = run.manifest.get("host")
    return host.get("hostname") if isinstance(host, dict) else host
