"""The judging rule a recipe declares: windows, margins, bands. `reports` applies it; `matrix` only checks that it makes sense."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Base of every declaration: unknown fields are errors, values are not coerced between kinds, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Windows(Strict):
    """Lengths in steps of the two windows a curve is summarised by. They must not overlap within the planned steps."""

    first: Annotated[int, Field(ge=1)]
    last: Annotated[int, Field(ge=1)]


class Margins(Strict):
    """δ of each run-level statistic, in units of the metric (`residual` is a ratio of standard deviations)."""

    first: Positive
    last: Positive
    whole: Positive
    residual: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = (
        None  # candidate's within-run residual sd over the baseline's, at most this (and at least its inverse if two-sided)
    )


class SdFloor(Strict):
    """Least between-run standard deviation assumed per statistic: a few lucky baseline runs must not make the interval too narrow."""

    first: Positive
    last: Positive
    whole: Positive


class Trajectory(Strict):
    """An exact-trajectory cell: the candidate must reproduce one named run step by step, within rounding."""

    seed: int | None = None  # of the run to reproduce; null: the baseline's only run
    pointwise: Positive  # largest |candidate - reference| at a step, in units of the metric
    mean: Positive  # |mean over the steps of candidate - reference|: a small drift in one direction that no single step shows


class Exactness(Strict):
    """Bands that need no statistics. A band that is null is not checked; a band that is set and whose metric is missing is never a pass."""

    step0_logprob_gap_max: Positive | None = None  # trainer against engine, largest |Δ log p| at the first step
    logprob_gap_mean_max: Positive | None = None  # over all steps, the largest mean |Δ log p| of a step
    kl_ref_step0_max: Positive | None = None
    nll_minus_entropy_z_max: Positive | None = None  # |mean over steps of z| · √steps stays below this many standard errors
    weight_digests: bool = True  # every weight_sync event carries a matching digest
    trajectory: Trajectory | None = None


class Secondary(Strict):
    """A further run-level statistic, compared as the primary ones are. It decides only where it `gates`; otherwise it is shown.

    `steps_to`: steps until a moving mean (of the first window's length) of the metric is at or beyond `threshold` for the first time; a run that never
    gets there counts with the planned steps. `quantile`: of all steps.
    """

    name: str
    metric: str | None = None  # null: the judged metric
    statistic: Literal["first", "last", "whole", "steps_to", "quantile"] = "last"
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    better: Literal["higher", "lower"]
    delta: Positive
    sd_floor: Positive | None = None
    gates: bool = False

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for needed, statistic in (("threshold", "steps_to"), ("quantile", "quantile")):
            if (self.statistic == statistic) != (getattr(self, needed) is not None):
                raise ValueError(f"secondary '{self.name}': {needed} belongs to statistic {statistic}, and to no other")
        return self


class JudgeRule(Strict):
    """How a set of candidate runs is compared with a set of baseline runs (docs/verdict.md)."""

    metric: Annotated[str, Field(min_length=1)] = "rollout/reward_mean"
    evidence: Literal["exactness", "convergence"] = "convergence"
    better: Literal["higher", "lower"] = "higher"  # which way the metric improves; names of metrics are not trusted for it
    sided: Literal["one", "two"]
    spread: Literal["welch", "larger"] = "welch"  # of two or more candidates: Welch's, or the larger of both sides' with the baseline's degrees of freedom
    pooled: bool = False  # the baseline's spread is pooled with that of the other baselines of this recipe (cells of one family)
    paired: bool = False  # candidates and baseline runs of one seed saw the same prompts: differences within pairs are compared
    planned_steps: Annotated[int, Field(ge=1)]
    early_stop: bool = False
    learning: bool = True  # the last window must lie above the first; false for a metric that a healthy run leaves where it is
    windows: Windows
    delta: Margins | None = None
    delta_reason: str = ""  # why this δ: what it lets through and what it catches
    sd_floor: SdFloor | None = None
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # overall, over all looks
    max_seeds: Annotated[int, Field(ge=1, le=3)] = 3  # looks
    exactness: Exactness = Exactness()
    secondary: list[Secondary] = []

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.evidence == "convergence":
            need = self.windows.first + self.windows.last
            if self.planned_steps < need:
                raise ValueError(
                    f"planned_steps {self.planned_steps} is below first window + last window = {need}: a convergence recipe needs disjoint windows"
                )
            if self.delta is None or not self.delta_reason:
                raise ValueError("a convergence recipe needs delta and delta_reason")
        if self.paired and self.pooled:
            raise ValueError("paired and pooled exclude each other: pairs have a spread of their own")
        names = [item.name for item in self.secondary]
        if taken := sorted({name for name in names if names.count(name) > 1 or name in Margins.model_fields}):
            raise ValueError(f"secondary statistics need names of their own: {', '.join(taken)}")
        return self
