"""The judging rule a recipe declares: windows, margins, bands. `reports` applies it; `matrix` only checks that it makes sense."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0)]


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
    residual: Annotated[float, Field(gt=1)] | None = (
        None  # candidate's within-run residual sd over the baseline's, at most this (and at least its inverse if two-sided)
    )


class SdFloor(Strict):
    """Least between-run standard deviation assumed per statistic: a few lucky baseline runs must not make the interval too narrow."""

    first: Positive
    last: Positive
    whole: Positive


class Exactness(Strict):
    """Bands that need no statistics. A band that is null is not checked; a band that is set and whose metric is missing is never a pass."""

    step0_logprob_gap_max: Positive | None = None  # trainer against engine, largest |Δ log p| at the first step
    logprob_gap_mean_max: Positive | None = None  # over all steps, the largest mean |Δ log p| of a step
    kl_ref_step0_max: Positive | None = None
    nll_minus_entropy_z_max: Positive | None = None  # |mean over steps of z| · √steps stays below this many standard errors
    weight_digests: bool = True  # every weight_sync event carries a matching digest


class JudgeRule(Strict):
    """How a set of candidate runs is compared with a set of baseline runs (docs/verdict.md)."""

    metric: str = "rollout/reward_mean"
    evidence: Literal["exactness", "convergence"] = "convergence"
    better: Literal["higher", "lower"] = "higher"  # which way the metric improves; names of metrics are not trusted for it
    sided: Literal["one", "two"]
    spread: Literal["welch", "larger"] = "welch"  # of two or more candidates: Welch's, or the larger of both sides' with the baseline's degrees of freedom
    planned_steps: Annotated[int, Field(ge=1)]
    early_stop: bool = False
    windows: Windows
    delta: Margins | None = None
    delta_reason: str = ""  # why this δ: what it lets through and what it catches
    sd_floor: SdFloor | None = None
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # overall, over all looks
    max_seeds: Annotated[int, Field(ge=1, le=3)] = 3  # looks
    exactness: Exactness = Exactness()

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
        return self
