"""The commands about verdicts: judge, replay, night, calibrate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reports import options as o
from reports.errors import ReportError
from reports.options import reading

if TYPE_CHECKING:
    from reports.recipes import Held
    from reports.verdict import Verdict

RULE = (
    "metric", "better", "sided", "evidence", "planned_steps", "first", "last", "delta", "delta_first", "delta_last", "delta_whole", "delta_residual",
    "alpha", "max_seeds", "spread", "trajectory", "paired",
)  # fmt: skip
REWARD = ("reward_id", "reward_range")


# fmt: off
def judge(
    context: typer.Context, runs: o.Runs,
    baseline: o.Baseline = None, recipe: o.RecipeOption = None, as_json: o.AsJson = False, out: o.Out = None, looks_done: o.LooksDone = 0,
    metric: o.Metric = None, better: o.Better = None, sided: o.Sided = None, evidence: o.Evidence = None, planned_steps: o.PlannedSteps = None,
    first: o.First = None, last: o.Last = None,
    delta: o.Delta = None, delta_first: o.DeltaFirst = None, delta_last: o.DeltaLast = None, delta_whole: o.DeltaWhole = None,
    delta_residual: o.DeltaResidual = None,
    alpha: o.Alpha = None, max_seeds: o.MaxSeeds = None, spread: o.Spread = None, pool: o.Pool = None, paired: o.Paired = False,
    trajectory: o.Trajectory = None, settings: o.Settings = None,
    science_hash: o.ScienceHash = None, candidate_label: o.CandidateLabel = None, baseline_label: o.BaselineLabel = None,
    reward_id: o.RewardId = None, reward_range: o.RewardRange = None, assume_comparable: o.AssumeComparable = False,
    format: o.FormatOption = None, step: o.StepOption = None, name: o.NameOption = None, names: o.NamesOption = None, cache: o.CacheOption = None,
) -> None:
    # fmt: on
    """Judge runs against a baseline.

    Exit code: 0 PASS, 1 FAIL, 10 INCONCLUSIVE, 11 INCOMPLETE, 12 INVALID, 13 INFRA, 15 NO_BASELINE; 2 a mistake in the command.

    python -m reports judge results/qwen3-4b.cpu.colocate/seed-100
    python -m reports judge a.jsonl -b b0.jsonl -b b1.jsonl -b b2.jsonl --planned-steps 100 --delta-first 0.1 --delta-last 0.03 --delta-whole 0.025
    """
    from reports.baseline import load_baseline
    from reports.judge import judge as judge_runs
    from reports.readers import read_runs
    from reports.readers.names import resolve_metric
    from reports.rules import labelled, resolve

    how = reading(format, step, name or [], names, cache)
    candidates = labelled(read_runs(runs, how), candidate_label or [], "--candidate-label")
    base = labelled(load_baseline(baseline, how)[0], baseline_label or [], "--baseline-label") if baseline else []
    given = _said(context, RULE) | ({"pooled": True} if pool else {})
    held = resolve(candidates, recipe, given, science_hash, assume_comparable, settings or [], base, _said(context, REWARD))
    resolve_metric(held.rule.metric, [*candidates, *base])  # an ambiguous one is an error with the choices
    against = base if baseline_label else baseline or ([held.baseline] if held.baseline else None)
    family = pool or (_family(held) if held.rule.pooled else [])
    verdict = judge_runs(candidates, against, held.rule, held.declared, looks_done, how, family)
    if pool and (idle := [path for path in pool if str(path) not in [group.path for group in verdict.pool if group.variance]]):
        raise ReportError(f"--pool {idle[0]}: adds nothing: no other baseline of two or more runs with {held.rule.metric} at common steps is there")
    _tell(verdict, as_json, out)
    raise typer.Exit(verdict.outcome.exit_code)


def _said(context: typer.Context, names: Sequence[str]) -> dict[str, Any]:
    """Those of the options that the command line gives."""
    return {name: value for name in names if (value := context.params[name]) is not None and value is not False}


def _tell(verdict: Verdict, as_json: bool, out: Path | None) -> None:
    from reports.show import print_verdict

    if out is not None:
        try:
            typer.echo(f"verdict: {verdict.write(out)}", err=True)
        except OSError as error:
            raise ReportError(f"--out {out}: cannot be written ({error.strerror})") from None
    if as_json:
        typer.echo(verdict.model_dump_json(indent=1))
    else:
        print_verdict(verdict)


def _family(held: Held) -> list[Path]:
    """Every stored baseline of the same recipe."""
    from reports.recipes import baselines_of

    return baselines_of(held.name, held.baseline.parent if held.baseline else None)


def replay(
    file: Annotated[Path, typer.Argument(help="A verdict.json.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Judge again from a verdict's file alone, and say whether every number comes out as it stands there.

    Exit code: the outcome's, as of judge; 2 when anything differs.

    python -m reports replay results/qwen3-4b.cpu.colocate/verdicts/20260101T000000.json
    """
    import json

    from reports.replay import differences
    from reports.replay import replay as judge_again
    from reports.show import print_verdict
    from reports.verdict import read_verdict

    verdict = read_verdict(file)
    again = judge_again(verdict)
    if as_json:
        typer.echo(again.model_dump_json(indent=1))
    else:
        print_verdict(again)
    apart = list(differences(json.loads(verdict.model_dump_json()), json.loads(again.model_dump_json())))
    if apart:
        more = f" and {len(apart) - 5} more" if len(apart) > 5 else ""
        raise ReportError(f"{file}: not reproduced: {'; '.join(sorted(apart)[:5])}{more}")
    typer.echo("reproduced bit for bit", err=True)
    raise typer.Exit(again.outcome.exit_code)


def night(
    root: Annotated[Path, typer.Argument(help="Results: <root>/<cell key>/verdicts/.", show_default=False)],
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the alarms that may be false.")] = 0.05,
) -> None:
    """Which FAILs of a night's cells are alarms, and which chance explains (Benjamini-Hochberg over all compared cells). Exit code 1 for any alarm.

    python -m reports night results
    """
    from reports.night import of_results
    from reports.results import read_results

    found = of_results(read_results(root), share)
    typer.echo(found.text)
    raise typer.Exit(1 if found.alarms else 0)


def calibrate(
    target: Annotated[list[str] | None, typer.Argument(help="A recipe of the matrix, a baseline folder, or runs.", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--shipped", help="Every recipe of the matrix that has a stored baseline.")] = False,
    recipe: o.RecipeOption = None,
    trials: Annotated[int, typer.Option(min=100, help="Resampled nights per number.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    into: Annotated[
        Path | None,
        typer.Option(help="Write the table into a document, between its marks <!-- calibrate RECIPE --> and <!-- end calibrate -->.", show_default=False),
    ] = None,
    spread: Annotated[str | None, typer.Option(help="welch or larger: try the other rule for two and three candidates.", show_default=False)] = None,
    format: o.FormatOption = None,
) -> None:
    """How often the rule says PASS, FAIL and INCONCLUSIVE of healthy and of broken candidates, made from stored runs: a Markdown table.

    python -m reports calibrate spell-backward
    python -m reports calibrate matrix/baselines/3f2a9c81d0be
    python -m reports calibrate --shipped --into docs/verdict.md
    """
    from reports.baseline import load_baseline
    from reports.calibrate import operating_characteristic
    from reports.calibrate.table import as_markdown, warnings, write_between_marks
    from reports.rules import resolve

    given = {"spread": spread} if spread else {}
    for sources, named in _calibrated(target or [], every, recipe):
        runs, _ = load_baseline(sources, format)
        held = resolve(runs, named, given, None, False)
        found = operating_characteristic(runs, held.rule, trials, seed)
        text = as_markdown(found, held)
        typer.echo(text)
        for warning in warnings(found, held):
            typer.echo(f"warning: {warning}", err=True)
        if into is not None:
            write_between_marks(into, held.name, text)


def pictures(
    into: Annotated[Path, typer.Argument(help="Directory for the SVGs.")] = Path("docs/images"),
    recipe: Annotated[str, typer.Option(help="A recipe with a stored baseline.")] = "spell-backward",
) -> None:
    """Draw the three pictures of docs/verdict.md from a stored baseline.

    python -m reports pictures docs/images
    """
    from reports.baseline import load_baseline
    from reports.calibrate.pictures import write
    from reports.rules import resolve

    [(sources, named), *_] = _calibrated([recipe], False, None)
    runs, _ = load_baseline(sources)
    for path in write(runs, resolve(runs, named, {}, None, False).rule, into):
        typer.echo(str(path))


def _calibrated(targets: Sequence[str], every: bool, recipe: str | None) -> list[tuple[list[Path], str | None]]:
    """(runs or a baseline folder, recipe) for each table that is asked for."""
    from reports.recipes import baselines_of, shipped

    if every == bool(targets):
        raise ReportError("give a recipe, a baseline folder or runs; or --shipped for every recipe with a stored baseline")
    paths = [Path(target) for target in targets if Path(target).exists()]
    if paths and len(paths) == len(targets):
        return [(paths, recipe)]
    names = shipped() if every else list(targets)
    found: list[tuple[list[Path], str | None]] = [([folder], name) for name in names for folder in baselines_of(name)]
    empty = [name for name in names if not baselines_of(name)]
    if empty:
        raise ReportError(f"{empty[0]}: neither a path nor a recipe with a stored baseline (there are: {', '.join(shipped()) or 'none'})")
    return found


def register(app: typer.Typer) -> None:
    """Add the commands to `python -m reports`."""
    for command in (judge, replay, calibrate, night, pictures):
        app.command()(command)
