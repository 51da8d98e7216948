"""The verdict as a file: every number needed to redraw it and to judge again, the reasons in plain words, and the suspect."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from matrix.outcome import Outcome
from matrix.rule import JudgeRule
from reports.errors import ReportError
from reports.facts import MetricFacts, Part, SyncFacts

SCHEMA_VERSION = 2
READABLE = (1, 2)  # a verdict of schema 1 can be read and drawn; it does not hold what judging again needs


class Declared(Part):
    """What a set of candidates claims to be. None: nothing is claimed, so nothing is checked."""

    cell: str | None = None
    recipe: str | None = None
    science_hash: str | None = None
    reward_id: str | None = None
    reward_range: tuple[float, float] | None = None
    assume_comparable: bool = False  # the caller vouches for runs without a science hash


class Found(Part):
    """A reader's note."""

    kind: str
    text: str
    where: str = ""
    metric: str = ""


class Points(Part):
    """A curve: one value a step, both lists of the same length. Among `RunRef.curves`, no steps at all stands for all steps of the run."""

    steps: list[int]
    values: list[float]


class RunRef(Part):
    """One run a verdict is about."""

    name: str
    path: str
    format: str
    sha: str
    seed: int | None = None
    science_hash: str | None = None
    steps_done: int
    first_step: int | None = None
    last_step: int | None = None
    planned_steps: int | None = None
    curve: Points  # the judged metric, as read
    notes: list[Found] = []
    provenance: dict[str, Any] = {}
    labels: dict[str, Any] = {}
    grid: list[tuple[int, int, int]] = []  # all steps with a record, as (first, last, stride)
    recorded: list[str] = []  # names of all metrics
    curves: dict[str, Points] = {}  # further metrics that a check or a statistic reads step by step
    facts: dict[str, MetricFacts] = {}  # further metrics of which a check needs a few numbers
    syncs: SyncFacts = SyncFacts()
    events: list[dict[str, Any]] = []  # errors, and why it stopped early
    infra_class: str | None = None


class PoolGroup(Part):
    """Another baseline of the recipe's family: the variance between its runs, by statistic (of the logarithm for the residual)."""

    name: str
    path: str
    runs: int
    shas: list[str]
    variance: dict[str, float]


class Ending(Part):
    """What the runner saw of a run that did not finish: the verdict is never better than this."""

    outcome: Outcome
    reason: str


class Check(Part):
    """One check that needs no interval. `outcome` is what a check that is not good leads to."""

    stage: Literal["integrity", "exactness", "learning"]
    name: str
    run: str = ""
    state: Literal["good", "bad", "missing"]
    outcome: Outcome
    text: str
    value: float | None = None
    limit: float | None = None
    p: float | None = None  # how often a healthy run would do this badly; None where no chance is involved


class Comparison(Part):
    """One run-level statistic, candidates against baseline.

    scale "difference": candidate mean minus baseline mean, in the metric's unit. scale "ratio": candidate over baseline (geometric means), 1 is equal.
    The interval (low, high) errs with probability `level` at each end. An absent margin (one-sided) is null.
    """

    statistic: str
    title: str
    scale: Literal["difference", "ratio"]
    candidate: list[float]
    baseline: list[float]
    candidate_mean: float
    baseline_mean: float
    candidate_sd: float | None
    baseline_sd: float | None
    difference: float
    low: float | None
    high: float | None
    delta: float
    margin_low: float | None
    margin_high: float | None
    n: int
    B: int
    se: float | None
    df: float | None
    state: Literal["inside", "outside", "between", "undefined", "descriptive"]
    far_better: bool = False
    gates: bool = True  # a secondary statistic that does not gate is shown and decides nothing
    metric: str = ""  # where it is not the judged one
    p_outside: float | None = None  # p-value of "the true difference lies within the margin": small far outside it
    text: str


class Resource(Part):
    """A cost as a ratio of medians, candidate over baseline; advisory."""

    metric: str
    candidate: float
    baseline: float
    ratio: float
    worse: bool  # by more than the advisory limit
    text: str


class Suspect(Part):
    """Where the fault probably sits, and the line of evidence."""

    name: str
    evidence: str
    strength: float | None = None  # how far off, in baseline spreads or as a ratio, where that can be said


class Verdict(Part):
    """What the evidence says about a set of candidate runs."""

    schema_version: int = SCHEMA_VERSION
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    outcome: Outcome
    evidence: Literal["exactness", "convergence"]
    descriptive: bool = False  # too few baseline runs for a distribution: numbers without a judgement
    stale: bool = False  # the recipe changed since the baseline was recorded
    headline: str
    reasons: list[str]
    suspects: list[Suspect] = []
    declared: Declared = Declared()
    rule: JudgeRule
    look: int = 1  # this is the look-th time the candidates are looked at
    looks: int = 1
    last_look: bool = True
    level: float | None = None  # one-sided error of each interval, so that all looks together err with rule.alpha
    alarm_p: float | None = None  # how often a cell as good as δ allows would look this bad; None where nothing was compared (reports/night.py)
    common_steps: int = 0
    candidates: list[RunRef]
    baseline: list[RunRef] = []
    baseline_path: str = ""
    baseline_stale: str = ""  # why the baseline was too old when this was judged: said, and no outcome
    pool: list[PoolGroup] = []
    endings: list[Ending] = []
    checks: list[Check] = []
    comparisons: list[Comparison] = []
    resources: list[Resource] = []

    @property
    def title(self) -> str:
        """Outcome with the kind of evidence where that is not convergence: an exactness pass is never mistaken for convergence."""
        return f"{self.outcome} (exactness)" if self.evidence == "exactness" and self.outcome is Outcome.PASS else str(self.outcome)

    def write(self, path: Path) -> Path:
        """Write the verdict as JSON. A path without the suffix .json is a directory, in which the file is named by the time."""
        if path.suffix != ".json":
            now = datetime.now(UTC)
            path = path / f"{now.strftime('%Y%m%dT%H%M%S')}-{now.microsecond * 1000:09d}Z.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
        return path


def read_verdict(path: Path) -> Verdict:
    """Raises ReportError with the first fault for a file that is not a verdict of this schema version."""
    if not path.is_file():
        raise ReportError(f"{path}: no such verdict file")
    try:
        verdict = Verdict.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ReportError(
            f"{path}: not a verdict of schema {READABLE[0]} to {READABLE[-1]}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        ) from None
    if verdict.schema_version not in READABLE:
        raise ReportError(f"{path}: verdict of schema {verdict.schema_version}, this version reads {READABLE[0]} to {READABLE[-1]}")
    return verdict
