"""Options of the commands, each once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reports.errors import ReportError

if TYPE_CHECKING:
    from reports.readers.base import Reading

Runs = Annotated[list[Path], typer.Argument(help="Run directories or files of curves.", show_default=False)]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", help="A recipe of the matrix or a YAML file; default: the one the runs' labels name.", show_default=False)
]
StepOption = Annotated[
    str | None, typer.Option("--step", help='Column or key that holds the step, or "order" to number records by position.', show_default=False)
]
NameOption = Annotated[list[str] | None, typer.Option("--name", help="OURS=THEIRS: the file's name of a metric; may be repeated.", show_default=False)]
NamesOption = Annotated[Path | None, typer.Option("--names", help="A TOML file that extends the table of metric names.", show_default=False)]
CacheOption = Annotated[Path | None, typer.Option("--cache", help="Folder of parsed curves: made where it is not there, safe to delete.", show_default=False)]
FormatOption = Annotated[str | None, typer.Option("--format", help="Force a reader instead of choosing by content.", show_default=False)]

# What judge says of the rule, and of the runs.
Baseline = Annotated[
    list[Path] | None,
    typer.Option("--baseline", "-b", help="Baseline folder or run; may be repeated. Default: the cell's, in matrix/baselines.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")]
Out = Annotated[Path | None, typer.Option(help="Also write the verdict: a .json file, or a directory.", show_default=False)]
LooksDone = Annotated[int, typer.Option(min=0, max=2, help="How often this cell was judged before with fewer seeds.")]
Metric = Annotated[str | None, typer.Option(help="Metric to judge (without a recipe: rollout/reward_mean).", show_default=False)]
Better = Annotated[str | None, typer.Option(help="higher or lower: which way the metric improves (default higher).", show_default=False)]
Sided = Annotated[str | None, typer.Option(help="one (non-inferiority) or two (equivalence, the default).", show_default=False)]
Evidence = Annotated[str | None, typer.Option(help="convergence (the default) or exactness.", show_default=False)]
PlannedSteps = Annotated[int | None, typer.Option(help="Steps a whole run has (default: the manifest's, else the baseline's).", show_default=False)]
First = Annotated[int | None, typer.Option(help="First window in steps (default a tenth, at least 5).", show_default=False)]
Last = Annotated[int | None, typer.Option(help="Last window in steps (default a quarter, at least 10).", show_default=False)]
Delta = Annotated[float | None, typer.Option(help="Margin of first window, last window and whole curve.", show_default=False)]
DeltaFirst = Annotated[float | None, typer.Option(help="Margin of the first window.", show_default=False)]
DeltaLast = Annotated[float | None, typer.Option(help="Margin of the last window.", show_default=False)]
DeltaWhole = Annotated[float | None, typer.Option(help="Margin of the whole curve.", show_default=False)]
DeltaResidual = Annotated[float | None, typer.Option(help="Margin of the noise within a run, a ratio above 1.", show_default=False)]
Alpha = Annotated[float | None, typer.Option(help="Overall error over all looks (default 0.05).", show_default=False)]
MaxSeeds = Annotated[int | None, typer.Option(help="Looks that are planned, 1 to 3 (default 3).", show_default=False)]
Spread = Annotated[str | None, typer.Option(help="welch or larger: whose spread counts with two and three candidates.", show_default=False)]
Pool = Annotated[list[Path] | None, typer.Option(help="Another baseline of the family, to pool the spread with.", show_default=False)]
Paired = Annotated[bool, typer.Option("--paired", help="Compare candidates with the baseline runs of their seeds.")]
Trajectory = Annotated[
    tuple[float, float] | None, typer.Option(help="POINTWISE MEAN: reproduce the baseline run step by step, to these distances.", show_default=False)
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Any other field of the rule, such as exactness.kl_ref_step0_max=1e-6.", show_default=False)]
ScienceHash = Annotated[str | None, typer.Option(help="The science hash the runs must have.", show_default=False)]
CandidateLabel = Annotated[list[str] | None, typer.Option(help="NAME=VALUE that candidate files do not say themselves.", show_default=False)]
BaselineLabel = Annotated[list[str] | None, typer.Option(help="NAME=VALUE that baseline files do not say themselves.", show_default=False)]
RewardId = Annotated[str | None, typer.Option(help="The reward the runs must have been made with.", show_default=False)]
RewardRange = Annotated[tuple[float, float] | None, typer.Option(help="LOW HIGH: the range its values must lie in.", show_default=False)]
AssumeComparable = Annotated[bool, typer.Option("--assume-comparable", help="Vouch for runs that carry no science hash or reward id.")]


def reading(format: str | None, step: str | None, names: Sequence[str], table: Path | None, cache: Path | None = None) -> Reading:
    """What the command line says about the files. Raises ReportError for a --name without its equals sign."""
    from reports.readers.base import Reading

    said = [name.partition("=") for name in names]
    if wrong := [f"--name {ours}" for ours, equals, theirs in said if not (ours and equals and theirs)]:
        raise ReportError(f"{wrong[0]}: OURS=THEIRS is wanted, such as rollout/reward_mean=score")
    return Reading(format, step, {ours: theirs for ours, _, theirs in said}, table, cache)
