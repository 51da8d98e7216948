"""Few numbers of every metric and of the weight syncs: what a verdict needs of a run beyond the curves it draws, to be judged again from its file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from reports.metrics import RESOURCES

if TYPE_CHECKING:
    from reports.model import Curve


class Part(BaseModel):
    """Base of what a verdict file holds: unknown fields are errors, NaN and infinity are written as text ("NaN", "Infinity") because JSON has no others."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


@dataclass(frozen=True, slots=True)
class MetricFacts:
    """One metric of one run. Means and medians are over its finite values; None where there is none.

    No model of pydantic: four thousand of them are made when five hundred cells are judged, and a dataclass costs a twentieth.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Part.model_config
    count: int
    first_step: int
    first: float
    mean: float | None
    median: float | None  # of costs alone
    largest: float  # of |value|; infinite where a value is not finite
    score: float | None  # |mean|·√count over all values: a statistic that is standard normal at every step stays normal
    bad_step: int | None = None  # first step whose value is not finite
    bad_value: float | None = None
    bad_count: int = 0


class SyncFacts(Part):
    """The weight_sync events of a run: how many, and how many of them carry no matching digest."""

    total: int = 0
    bad: int = 0
    first_bad_version: str = ""


def of_curves(curves: Mapping[str, Curve], names: Iterable[str]) -> dict[str, MetricFacts]:
    """Facts of those of `names` that are recorded. Metrics on equal steps are reduced together: a run of 25 metrics costs half a millisecond."""
    groups: dict[tuple[int, int, int], list[str]] = {}
    for name in names:
        curve = curves.get(name)
        if curve is not None and len(curve.steps):
            groups.setdefault((len(curve.steps), int(curve.steps[0]), int(curve.steps[-1])), []).append(name)
    found: dict[str, MetricFacts] = {}
    for members in groups.values():
        found |= _of_group(members, curves)
    return {name: found[name] for name in names if name in found}


def _of_group(names: list[str], curves: Mapping[str, Curve]) -> dict[str, MetricFacts]:
    values = np.array([curves[name].values for name in names])
    finite = np.isfinite(values)
    if finite.all():
        mean, largest = values.mean(axis=-1), np.abs(values).max(axis=-1)
        score = np.abs(mean) * np.sqrt(values.shape[-1])
        return {
            name: MetricFacts(
                count=values.shape[-1],
                first_step=int(curves[name].steps[0]),
                first=float(values[row, 0]),
                mean=float(mean[row]),
                median=float(np.median(values[row])) if name in RESOURCES else None,
                largest=float(largest[row]),
                score=float(score[row]),
                bad_step=None,
                bad_value=None,
                bad_count=0,
            )
            for row, name in enumerate(names)
        }
    return {name: _one(name, curves[name], values[row], finite[row]) for row, name in enumerate(names)}


def _one(name: str, curve: Curve, values: np.ndarray, finite: np.ndarray) -> MetricFacts:
    good = values[finite]
    bad = np.flatnonzero(~finite)
    return MetricFacts(
        count=len(values),
        first_step=int(curve.steps[0]),
        first=float(values[0]),
        mean=float(good.mean()) if len(good) else None,
        median=float(np.median(good)) if len(good) and name in RESOURCES else None,
        largest=float("inf") if len(bad) else float(np.abs(values).max()),
        score=None if len(bad) else float(abs(values.mean()) * np.sqrt(len(values))),
        bad_step=int(curve.steps[bad[0]]) if len(bad) else None,
        bad_value=float(values[bad[0]]) if len(bad) else None,
        bad_count=len(bad),
    )


def of_syncs(events: Iterable[Mapping[str, Any]]) -> SyncFacts:
    """Counts over a run's events."""
    syncs = [event for event in events if event.get("event") == "weight_sync"]
    bad = [event for event in syncs if not digest_holds(event)]
    return SyncFacts(total=len(syncs), bad=len(bad), first_bad_version=str(bad[0].get("version", "?")) if bad else "")


def digest_holds(event: Mapping[str, Any]) -> bool:
    """Good if the event carries the digest that trainers and engines agreed on over at least one tensor; a proof of what is held names its method.

    vime writes the event only after both sides' digests were compared, and stops the run on a mismatch.
    """
    held = event.get("held")
    received = event.get("received") == "digest" and bool(event.get("digest")) and event.get("tensors", 0) > 0
    return received and (held is None or (isinstance(held, dict) and bool(held.get("method"))))
