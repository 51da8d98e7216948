"""The rule a command judges by: the recipe's, with what the command line says on top."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from matrix.rule import JudgeRule
from reports import recipes
from reports.checks.context import origin
from reports.errors import ReportError
from reports.model import Run
from reports.readers.names import resolve_metric
from reports.recipes import Held
from reports.verdict import Declared

MARGINS = ("first", "last", "whole", "residual")
OVERALL = ("first", "last", "whole")  # what `delta` alone stands for


def resolve(
    runs: Sequence[Run],
    recipe: str | None,
    given: Mapping[str, Any],
    science_hash: str | None,
    assume_comparable: bool,
    settings: Sequence[str] = (),
    baseline: Sequence[Run] = (),
    reward: Mapping[str, Any] | None = None,
) -> Held:
    """The recipe's rule (by name, file or label) changed by what is given; without a recipe, a rule made of that alone.

    given: fields of JudgeRule, with `first`, `last` (windows), `delta` (of all windows), `delta_first` … `delta_residual`, `trajectory` (pointwise, mean).
    settings: "exactness.kl_ref_step0_max=1e-6", any field of the rule by its path. baseline: where planned steps are said nowhere, its length.
    reward: `reward_id`, `reward_range`. Raises ReportError for what is missing or does not fit.
    """
    held = recipes.for_runs(runs, recipe)
    given = dict(given)
    if "metric" in given:
        given["metric"] = resolve_metric(given["metric"], [*runs, *baseline])
    try:
        values = _changed(held.rule, given) if held else _made(runs, baseline, given, settings)
        rule = JudgeRule.model_validate(_merged(values, settings)) if given or settings or not held else held.rule
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError(f"the rule does not fit: {where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}") from None
    declared = held.declared if held else Declared()
    changes: dict[str, Any] = {"assume_comparable": assume_comparable} | ({"science_hash": science_hash} if science_hash else {}) | dict(reward or {})
    return Held(rule, declared.model_copy(update=changes), held.baseline if held else None, held.name if held else "command line")


def _changed(rule: JudgeRule, given: Mapping[str, Any]) -> dict[str, Any]:
    values = rule.model_dump()
    values |= _plain(given)
    values["windows"] |= {name: given[name] for name in ("first", "last") if name in given}
    margins = _margins(given)
    if margins:
        values["delta"] = (values["delta"] or {}) | margins
        values["delta_reason"] = f"given on the command line; the recipe says: {values['delta_reason']}"
    if "trajectory" in given:
        values["exactness"]["trajectory"] = _trajectory(given)
    return values


def _made(runs: Sequence[Run], baseline: Sequence[Run], given: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    said = {setting.partition("=")[0].strip() for setting in settings}
    planned: int = given["planned_steps"] if "planned_steps" in given else next((run.planned_steps for run in runs if run.planned_steps), 0)
    ends = _ends(baseline)
    if not planned and "planned_steps" not in given:
        planned = ends[0] if len(set(ends)) == 1 else 0
    only_exact = given.get("evidence") == "exactness" or "evidence=exactness" in settings or ("trajectory" in given and not _margins(given))
    margins = _margins(given)
    wanted = () if only_exact or "delta" in said else [name for name in OVERALL if name not in margins and f"delta.{name}" not in said]
    missing = ["--delta (or " + ", ".join(f"--delta-{name}" for name in wanted) + ")"] if wanted else []
    differ = f" (the baseline's runs end after {min(ends)} to {max(ends)})" if len(set(ends)) > 1 else ""
    missing += [] if planned or "planned_steps" in {*said, *given} else [f"--planned-steps{differ}"]
    if missing:
        raise ReportError(f"no recipe is named by the runs or by --recipe: give {', '.join(missing)} (δ: the largest difference that does not matter)")
    windows = {"first": given.get("first") or max(5, math.ceil(planned / 10)), "last": given.get("last") or max(10, math.ceil(planned / 4))}
    values: dict[str, Any] = {"sided": "two", "exactness": {"weight_digests": False}} | _plain(given)
    values |= {"planned_steps": planned, "windows": windows, "delta_reason": "given on the command line"}
    if only_exact:
        values["evidence"] = "exactness"
    if margins:
        values["delta"] = margins
    if "trajectory" in given:
        values["exactness"]["trajectory"] = _trajectory(given)
    return values


def _ends(baseline: Sequence[Run]) -> list[int]:
    """How many steps each baseline run made, by the number of its last one."""
    return [int(run.steps[-1]) + 1 - origin(run.steps) for run in baseline if len(run.steps)]


def _margins(given: Mapping[str, Any]) -> dict[str, float]:
    overall = dict.fromkeys(OVERALL, given["delta"]) if "delta" in given else {}
    return overall | {name: given[f"delta_{name}"] for name in MARGINS if f"delta_{name}" in given}


def _trajectory(given: Mapping[str, Any]) -> dict[str, float]:
    pointwise, mean = given["trajectory"]
    return {"pointwise": pointwise, "mean": mean}


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in JudgeRule.model_fields and name != "delta"}


def _merged(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`values` with each "path.to.field=value" put in place; values are read as YAML."""
    from ruamel.yaml import YAML, YAMLError

    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise ReportError(f"--set {setting}: FIELD=VALUE is wanted, such as exactness.kl_ref_step0_max=1e-6")
        try:
            value = YAML(typ="safe").load(text)
        except YAMLError as error:
            raise ReportError(f"--set {setting}: not a YAML value ({str(error).splitlines()[0]})") from None
        at = values
        *parents, last = path.strip().split(".")
        for parent in parents:
            at[parent] = dict(at[parent]) if isinstance(at.get(parent), Mapping) else {}
            at = at[parent]
        at[last] = _as_number(value)
    return values


def _as_number(value: Any) -> Any:
    """YAML 1.2 reads 1e-6 as a number only with a dot in it; a person means a number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def labelled(runs: Sequence[Run], labels: Sequence[str], option: str) -> list[Run]:
    """Runs with labels that their files do not carry ("science_hash=abc"). Raises ReportError for one that contradicts the file."""
    said: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals or not key:
            raise ReportError(f"{option} {label}: NAME=VALUE is wanted, such as science_hash=3f2a9c81d0be")
        said[key] = value
    for run in runs:
        for key, value in said.items():
            if run.labels.get(key) not in (None, value):
                raise ReportError(f"{option} {key}={value}: {run.path} says {key} {run.labels[key]}")
    return [replace(run, manifest=run.manifest | {"labels": run.labels | said}) for run in runs] if said else list(runs)
