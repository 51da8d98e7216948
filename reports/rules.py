"""The rule a command judges by: the recipe's, with what the command line says on top."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from matrix.rule import JudgeRule
from reports import recipes
from reports.errors import ReportError
from reports.model import Run
from reports.recipes import Held
from reports.verdict import Declared

MARGINS = ("first", "last", "whole", "residual")


def resolve(runs: Sequence[Run], recipe: str | None, given: Mapping[str, Any], science_hash: str | None, assume_comparable: bool) -> Held:
    """The recipe's rule (by name, file or label) changed by `given`; without a recipe, a rule made of `given` alone.

    given: fields of JudgeRule, with `first`, `last` (windows) and `delta_first` … `delta_residual`. Raises ReportError for what is missing or does not fit.
    """
    held = recipes.for_runs(runs, recipe)
    try:
        rule = _changed(held.rule, given) if held else _made(runs, given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError(f"the rule does not fit: {where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}") from None
    declared = held.declared if held else Declared()
    changes: dict[str, Any] = {"assume_comparable": assume_comparable} | ({"science_hash": science_hash} if science_hash else {})
    return Held(rule, declared.model_copy(update=changes), held.baseline if held else None, held.name if held else "command line")


def _changed(rule: JudgeRule, given: Mapping[str, Any]) -> JudgeRule:
    if not given:
        return rule
    values = rule.model_dump()
    windows = {name: given[name] for name in ("first", "last") if name in given}
    margins = {name: given[f"delta_{name}"] for name in MARGINS if f"delta_{name}" in given}
    values |= _plain(given)
    values["windows"] |= windows
    if margins:
        values["delta"] = (values["delta"] or {}) | margins
        values["delta_reason"] = f"given on the command line; the recipe says: {values['delta_reason']}"
    return JudgeRule.model_validate(values)


def _made(runs: Sequence[Run], given: Mapping[str, Any]) -> JudgeRule:
    planned: int = given.get("planned_steps") or next((run.planned_steps for run in runs if run.planned_steps), 0)
    missing = [f"--delta-{name}" for name in ("first", "last", "whole") if f"delta_{name}" not in given]
    missing += ["--sided one|two"] if "sided" not in given else []
    missing += ["--planned-steps"] if not planned else []
    if missing:
        raise ReportError(f"no recipe is named by the runs or by --recipe: give {', '.join(missing)} (δ: the largest difference that does not matter)")
    windows = {"first": given.get("first") or max(5, math.ceil(planned / 10)), "last": given.get("last") or max(10, math.ceil(planned / 4))}
    values = {
        **_plain(given),
        "planned_steps": planned,
        "windows": windows,
        "delta": {name: given[f"delta_{name}"] for name in MARGINS if f"delta_{name}" in given},
        "delta_reason": "given on the command line",
        "exactness": {"weight_digests": False},
    }
    return JudgeRule.model_validate(values)


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in JudgeRule.model_fields}
