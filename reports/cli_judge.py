"""The commands about verdicts: judge, replay, night, calibrate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reports.errors import ReportError

if TYPE_CHECKING:
    from reports.readers.base import Reading
    from reports.recipes import Held

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


def judge(
    runs: Runs,
    baseline: Annotated[
        list[Path] | None,
        typer.Option("--baseline", "-b", help="Baseline folder or run; may be repeated. Default: the cell's, in matrix/baselines.", show_default=False),
    ] = None,
    recipe: RecipeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the verdict: a .json file, or a directory.", show_default=False)] = None,
    looks_done: Annotated[int, typer.Option(min=0, max=2, help="How often this cell was judged before with fewer seeds.")] = 0,
    metric: Annotated[str | None, typer.Option(help="Metric to judge (without a recipe: rollout/reward_mean).", show_default=False)] = None,
    better: Annotated[str | None, typer.Option(help="higher or lower: which way the metric improves (default higher).", show_default=False)] = None,
    sided: Annotated[str | None, typer.Option(help="one (non-inferiority) or two (equivalence, the default).", show_default=False)] = None,
    evidence: Annotated[str | None, typer.Option(help="convergence (the default) or exactness.", show_default=False)] = None,
    planned_steps: Annotated[int | None, typer.Option(help="Steps a whole run has (default: the manifest's, else the baseline's).", show_default=False)] = None,
    first: Annotated[int | None, typer.Option(help="First window in steps (default a tenth, at least 5).", show_default=False)] = None,
    last: Annotated[int | None, typer.Option(help="Last window in steps (default a quarter, at least 10).", show_default=False)] = None,
    delta: Annotated[float | None, typer.Option(help="Margin of first window, last window and whole curve.", show_default=False)] = None,
    delta_first: Annotated[float | None, typer.Option(help="Margin of the first window.", show_default=False)] = None,
    delta_last: Annotated[float | None, typer.Option(help="Margin of the last window.", show_default=False)] = None,
    delta_whole: Annotated[float | None, typer.Option(help="Margin of the whole curve.", show_default=False)] = None,
    delta_residual: Annotated[float | None, typer.Option(help="Margin of the noise within a run, a ratio above 1.", show_default=False)] = None,
    alpha: Annotated[float | None, typer.Option(help="Overall error over all looks (default 0.05).", show_default=False)] = None,
    max_seeds: Annotated[int | None, typer.Option(help="Looks that are planned, 1 to 3 (default 3).", show_default=False)] = None,
    spread: Annotated[str | None, typer.Option(help="welch or larger: whose spread counts with two and three candidates.", show_default=False)] = None,
    pool: Annotated[list[Path] | None, typer.Option(help="Another baseline of the family, to pool the spread with.", show_default=False)] = None,
    paired: Annotated[bool, typer.Option("--paired", help="Compare candidates with the baseline runs of their seeds.")] = False,
    trajectory: Annotated[
        tuple[float, float] | None, typer.Option(help="POINTWISE MEAN: reproduce the baseline run step by step, to these distances.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other field of the rule, such as exactness.kl_ref_step0_max=1e-6.", show_default=False)
    ] = None,
    science_hash: Annotated[str | None, typer.Option(help="The science hash the runs must have.", show_default=False)] = None,
    candidate_label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE that candidate files do not say themselves.", show_default=False)] = None,
    baseline_label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE that baseline files do not say themselves.", show_default=False)] = None,
    reward_id: Annotated[str | None, typer.Option(help="The reward the runs must have been made with.", show_default=False)] = None,
    reward_range: Annotated[tuple[float, float] | None, typer.Option(help="LOW HIGH: the range its values must lie in.", show_default=False)] = None,
    assume_comparable: Annotated[bool, typer.Option("--assume-comparable", help="Vouch for runs that carry no science hash or reward id.")] = False,
    format: FormatOption = None,
    step: StepOption = None,
    name: NameOption = None,
    names: NamesOption = None,
    cache: CacheOption = None,
) -> None:
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
    from reports.show import print_verdict

    given = {
        "metric": metric, "better": better, "sided": sided, "evidence": evidence, "planned_steps": planned_steps, "first": first, "last": last,
        "delta": delta, "delta_first": delta_first, "delta_last": delta_last, "delta_whole": delta_whole, "delta_residual": delta_residual,
        "alpha": alpha, "max_seeds": max_seeds, "spread": spread, "trajectory": trajectory,
        "paired": paired or None, "pooled": bool(pool) or None,
    }  # fmt: skip
    how = reading(format, step, name or [], names, cache)
    candidates = labelled(read_runs(runs, how), candidate_label or [], "--candidate-label")
    base = labelled(load_baseline(baseline, how)[0], baseline_label or [], "--baseline-label") if baseline else []
    if metric:
        given["metric"] = resolve_metric(metric, [*candidates, *base])
    reward = {"reward_id": reward_id, "reward_range": reward_range}
    held: Held = resolve(
        candidates,
        recipe,
        {name: value for name, value in given.items() if value is not None},
        science_hash,
        assume_comparable,
        settings or [],
        base,
        {name: value for name, value in reward.items() if value is not None},
    )
    resolve_metric(held.rule.metric, [*candidates, *base])  # an ambiguous one is an error with the choices
    against = base if baseline_label else baseline or ([held.baseline] if held.baseline else None)
    family = pool or (_family(held) if held.rule.pooled else [])
    verdict = judge_runs(candidates, against, held.rule, held.declared, looks_done, how, family)
    if pool and (idle := [path for path in pool if str(path) not in [group.path for group in verdict.pool if group.variance]]):
        raise ReportError(f"--pool {idle[0]}: adds nothing: no other baseline of two or more runs with {held.rule.metric} at common steps is there")
    if out is not None:
        typer.echo(f"verdict: {verdict.write(out)}", err=True)
    if as_json:
        typer.echo(verdict.model_dump_json(indent=1))
    else:
        print_verdict(verdict)
    raise typer.Exit(verdict.outcome.exit_code)


def reading(format: str | None, step: str | None, names: Sequence[str], table: Path | None, cache: Path | None = None) -> Reading:
    """What the command line says about the files. Raises ReportError for a --name without its equals sign."""
    from reports.readers.base import Reading

    said = [name.partition("=") for name in names]
    if wrong := [f"--name {ours}" for ours, equals, theirs in said if not (ours and equals and theirs)]:
        raise ReportError(f"{wrong[0]}: OURS=THEIRS is wanted, such as rollout/reward_mean=score")
    return Reading(format, step, {ours: theirs for ours, _, theirs in said}, table, cache)


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
    recipe: RecipeOption = None,
    trials: Annotated[int, typer.Option(min=100, help="Resampled nights per number.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    into: Annotated[
        Path | None,
        typer.Option(help="Write the table into a document, between its marks <!-- calibrate RECIPE --> and <!-- end calibrate -->.", show_default=False),
    ] = None,
    spread: Annotated[str | None, typer.Option(help="welch or larger: try the other rule for two and three candidates.", show_default=False)] = None,
    format: FormatOption = None,
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
