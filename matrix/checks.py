"""Everything a tree promises beyond loading: compositions that vime accepts, science kept out of layouts, true twins, weights as declared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matrix.affected import selection_problems
from matrix.baseline_files import baseline_problems
from matrix.checks_plan import missing_prerequisites, model_problems, plan_problems
from matrix.declarations import Model, Recipe
from matrix.fragments import Composed, Fragment, leaves
from matrix.frameworks import framework_problems
from matrix.loader import Declared, DeclaredCell, Matrix
from matrix.problem import MatrixError, Problem, Where
from matrix.resolver import compose_cell, layout_fragments, model_path
from matrix.twins import twin_faults
from matrix.vime_schema import PASSED_THROUGH, Catalogue
from matrix.weights import fingerprint


def check(matrix: Matrix) -> list[Problem]:
    """Every fault of a loaded tree, each once, by place."""
    found: list[Problem] = []
    found += _selection(matrix)
    for model in matrix.models.values():
        found += _model(matrix, model)
    for recipe in matrix.recipes.values():
        found += _recipe(recipe)
    if unreadable := _schemas(matrix):
        found += unreadable
    elif (matrix.root / "schema" / "vime-config.schema.json").is_file():
        found += _undecided(matrix)
        for cell in matrix.cells.values():
            found += _cell(matrix, cell)
        if not found:  # plans and hashes are taken of declarations that hold together
            found += [*plan_problems(matrix), *baseline_problems(matrix)]
    else:
        found.append(Problem(Where(str(matrix.root / "schema" / "vime-config.schema.json")), "is missing: write it with 'vime config schema'"))
    return sorted(set(found))


def _schemas(matrix: Matrix) -> list[Problem]:
    """Committed schema and catalogues that cannot be read: nothing can be held to them."""
    found: list[Problem] = []
    for path in sorted((matrix.root / "schema").glob("**/*.json")):
        try:
            _ = Catalogue(path) if path.parent.name == "options" else matrix.vime
        except MatrixError as error:
            found += error.problems
    return found


def _selection(matrix: Matrix) -> list[Problem]:
    try:
        return list(selection_problems(matrix))
    except MatrixError as error:
        return error.problems


def _model(matrix: Matrix, model: Declared[Model]) -> Iterator[Problem]:
    yield from model_problems(model)
    twin = model.value.twin
    if twin is None:
        return
    yield from (Problem(model.where("twin", *path), text) for path, text in twin_faults(model.value.architecture, twin))
    for name, start in twin.warm_starts.items():
        directory = matrix.root / "warmstarts" / start.directory
        message = _weights_fault(directory, start.sha256)
        if message:
            yield Problem(model.where("twin", "warm_starts", name), f"warm start '{name}': {message}")
        yield from (Problem(model.where("twin", "config", key), text) for key, text in _config_faults(directory, twin.config))


def _weights_fault(directory: Path, declared: str) -> str | None:
    if not directory.is_dir():
        return f"{directory} does not exist"
    try:
        found = fingerprint(directory)
    except ValueError as error:
        return str(error)
    return None if found == declared else f"the weights in {directory} have sha256 {found}, declared is {declared}: another checkpoint is another recipe"


def _config_faults(directory: Path, declared: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The warm start's own config.json against the twin's: they must describe one model."""
    file = directory / "config.json"
    if not file.is_file():
        return
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        written, error_text = None, f" ({error})"
    else:
        error_text = ""
    if not isinstance(written, dict):
        yield next(iter(declared), ""), f"{file} is not a JSON object{error_text}: make the warm start again"
        return
    for key, value, other in _differences(declared, written):
        yield key.split(".")[0], f"{key} is {value!r} here and {other!r} in {file}: make the warm start again, or mend the twin"


def _differences(declared: Mapping[str, Any], written: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, declared, written) of every key that both have with another value."""
    rope = written.get("rope_parameters") or {}  # transformers 5 writes rope_theta and rope_scaling there
    scaling = {"rope_scaling": rope} if rope and isinstance(declared.get("rope_scaling"), Mapping) else {}
    flat = {**({"torch_dtype": written["dtype"]} if "dtype" in written else {}), **rope, **scaling, **written}
    for key, value in declared.items():
        other = flat.get(key, value)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _differences(value, other, f"{prefix}{key}.")
        elif value != other and not (key == "model_type" and other == f"{value}_vision"):  # the name of a tower alone, where the model's was written
            yield f"{prefix}{key}", value, other


def _recipe(recipe: Declared[Recipe]) -> Iterator[Problem]:
    value = recipe.value
    steps = value.config.get("train", {}).get("steps") if isinstance(value.config.get("train"), dict) else None
    if steps != value.judge.planned_steps:
        yield Problem(
            recipe.where("config", "train", "steps"), f"train.steps is {steps}, judge.planned_steps is {value.judge.planned_steps}: they must be equal"
        )
    low, high = value.reward.range
    if not low < high:
        yield Problem(recipe.where("reward", "range"), f"reward.range: {low} is not below {high}")
    yield from _held_out(recipe)
    yield from _seeds_that_meet(recipe)
    if value.seeds.initial > value.judge.max_seeds:
        yield Problem(
            recipe.where("seeds", "initial"), f"seeds.initial is {value.seeds.initial}, judge.max_seeds is {value.judge.max_seeds}: no look would be left"
        )


def _seeds_that_meet(recipe: Declared[Recipe]) -> Iterator[Problem]:
    """Rules that compare runs of one seed cannot hold where a cell's candidates and its baseline never share one."""
    judge, apart = recipe.value.judge, f"baselines take seeds 0 to 99, candidates {recipe.value.seeds.candidates_from} and up"
    if judge.paired:
        yield Problem(recipe.where("judge", "paired"), f"judge.paired: no candidate ever has a baseline run of its seed ({apart}): compare them unpaired")
    band = judge.exactness.trajectory
    if band is not None and band.seed is not None:
        where = recipe.where("judge", "exactness", "trajectory", "seed")
        words = f"judge.exactness.trajectory.seed is {band.seed}: no candidate has that seed and the baseline too ({apart}): leave it out, for the only run"
        yield Problem(where, words)


def _held_out(recipe: Declared[Recipe]) -> Iterator[Problem]:
    """A recipe judged by a held-out score has to measure it."""
    metric = recipe.value.judge.metric
    settings = recipe.value.config.get("eval", {})
    if not metric.startswith("eval/"):
        return
    if not settings.get("every"):
        yield Problem(recipe.where("judge", "metric"), f"judge.metric is {metric}, and eval.every is not set: nothing would be measured")
    elif metric != f"eval/{settings.get('name', 'heldout')}/score":
        yield Problem(recipe.where("judge", "metric"), f"judge.metric is {metric}, the held-out set is called '{settings.get('name', 'heldout')}'")


def _undecided(matrix: Matrix) -> Iterator[Problem]:
    where = Where(str(matrix.root / "science.yaml"))
    known = [key for key, _ in matrix.vime.leaves()]
    for key in matrix.science.undecided(iter(known)):
        yield Problem(where, f"vime's key '{'.'.join(key)}' is in neither list: does it change what is learned?")
    for listed in matrix.science.science:
        if listed not in known:
            yield Problem(where, f"'{'.'.join(listed)}' is listed as science, and vime has no such key")


def cell_problems(matrix: Matrix, cell: DeclaredCell) -> list[Problem]:
    """What is wrong with one cell: contradictions, keys and values that vime's schema or an option catalogue refuses."""
    return sorted(set(_cell(matrix, cell)))


def _cell(matrix: Matrix, cell: DeclaredCell) -> Iterator[Problem]:
    composed = compose_cell(matrix, cell)
    missing = [problem for problem in composed.problems if problem.message in model_messages(matrix, cell)]
    composed.problems = [problem for problem in composed.problems if problem not in missing]
    yield from composed.problems
    yield from missing_prerequisites(matrix, cell)
    for fragment in layout_fragments(matrix, cell):
        yield from _science_in_layout(matrix, fragment)
    here = cell.declared.where("id")
    unknown = list(matrix.vime.unknown_keys(composed.values))
    for key, message in unknown:
        yield Problem(composed.where(key, here), message)
    for key, message in matrix.vime.faults({**composed.values, "seed": 0, "labels": {}}):
        if not any(problem.message for problem in composed.problems):
            yield Problem(composed.where(key, here), message)
    yield from _options(matrix, cell, composed)
    yield from framework_problems(cell, composed.values)


def model_messages(matrix: Matrix, cell: DeclaredCell) -> set[str]:
    return {problem.message for problem in model_path(matrix, cell)[1]}


def _science_in_layout(matrix: Matrix, fragment: Fragment) -> Iterator[Problem]:
    for key, value in leaves(fragment.values):
        if matrix.science.is_science(key):
            yield Problem(
                fragment.where(key),
                f"{'.'.join(key)} = {value!r} says what is learned: only a recipe sets it, or cells that share a recipe would not be comparable",
            )


def _options(matrix: Matrix, cell: DeclaredCell, composed: Composed) -> Iterator[Problem]:
    """The blocks passed through to vLLM and Megatron-Core, against the catalogue of the version that the hardware names."""
    hardware = cell.hardware
    for block, package in PASSED_THROUGH.items():
        version = hardware.value.versions.get(package)
        if version is None:
            if hardware.value.version_set in (None, *matrix.version_sets):  # else the set itself is missing or broken, which the loader has said
                yield Problem(hardware.where("versions"), f"versions names no {package}: its options could not be checked")
            continue
        catalogue = matrix.catalogue(package, version)
        if catalogue is None:
            yield Problem(hardware.where("versions", package), f"no catalogue of {package} {version} under schema/options: extract it from the package")
            continue
        for key, message in catalogue.unknown_options(block, composed.values.get(block, {})):
            yield Problem(composed.where(key, cell.declared.where("id")), message)
