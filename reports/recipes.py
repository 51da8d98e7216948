"""Where the rule comes from: a recipe of the matrix, a YAML file, or the command line; and what the runs are held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matrix.declarations import Recipe
from matrix.rule import JudgeRule
from reports.errors import ReportError
from reports.model import Run
from reports.verdict import Declared


@dataclass(frozen=True)
class Held:
    """A rule with what the runs are declared to be, and the folder their baseline belongs in (None where the matrix does not know the cell)."""

    rule: JudgeRule
    declared: Declared
    baseline: Path | None = None
    name: str = ""


def for_runs(runs: Sequence[Run], recipe: str | None, root: Path | None = None) -> Held | None:
    """The recipe given by name or file, else the one the runs' labels name; None where neither says.

    A cell that the matrix declares sets the science hash: runs of an older recipe do not match it. Raises ReportError when labels disagree.
    """
    name, cell = _label(runs, "recipe"), _label(runs, "cell")
    if recipe is not None and recipe.endswith((".yaml", ".yml")):
        return read_file(Path(recipe))
    if recipe is None and name is None:
        return None
    return from_matrix(recipe or str(name), cell if recipe in (None, name) else None, root)


def from_matrix(recipe: str, cell: str | None = None, root: Path | None = None) -> Held:
    """A recipe of the matrix; with the cell's science hash and baseline folder where the matrix declares the cell."""
    from matrix import baseline_directory, load, science_hash
    from matrix.problem import MatrixError, nearest

    try:
        matrix = load(root)
        if recipe not in matrix.recipes:
            raise ReportError(f"no recipe '{recipe}' is declared{nearest(recipe, matrix.recipes)}: give a YAML file, or the rule on the command line")
        declared = matrix.recipes[recipe].value
        found = matrix.cells.get(cell) if cell else None
        if found is None or found.recipe.value.name != recipe:
            return _held(declared, cell=cell if found else None)
        return _held(declared, str(found.id), science_hash(found, matrix), baseline_directory(found, matrix))
    except MatrixError as error:
        raise ReportError(f"the matrix cannot be loaded: {error.problems[0]}") from None


def read_file(path: Path) -> Held:
    """A recipe's YAML file, or one that holds a judging rule alone."""
    from matrix.typed import typed
    from matrix.yaml_file import read_yaml

    if not path.is_file():
        raise ReportError(f"--recipe {path}: no such file")
    document = read_yaml(path)
    is_recipe = isinstance(document.data, dict) and "judge" in document.data
    recipe, rule = (typed(document, Recipe), None) if is_recipe else (None, typed(document, JudgeRule))
    if document.problems:
        raise ReportError(str(document.problems[0]))
    if recipe is not None:
        return _held(recipe)
    if rule is None:
        raise ReportError(f"--recipe {path}: the file is empty")
    return Held(rule, Declared(), name=path.stem)


def baselines_of(recipe: str, root: Path | None = None) -> list[Path]:
    """Folders of stored baselines whose runs were made with a recipe, in order of their names. `root`: default this checkout's matrix/baselines."""
    import matrix
    from reports.baseline import FILE, read_provenance

    folder = root or Path(matrix.__file__).parent / "baselines"
    found = sorted(file.parent for file in folder.glob(f"*/{FILE}")) if folder.is_dir() else []
    return [path for path in found if read_provenance(path).recipe == recipe]


def shipped() -> list[str]:
    """Names of the recipes that a stored baseline was made with, in order."""
    import matrix
    from reports.baseline import FILE, read_provenance

    folder = Path(matrix.__file__).parent / "baselines"
    return sorted({name for file in folder.glob(f"*/{FILE}") if (name := read_provenance(file.parent).recipe)})


def _held(recipe: Recipe, cell: str | None = None, science: str | None = None, baseline: Path | None = None) -> Held:
    low, high = recipe.reward.range
    declared = Declared(cell=cell, recipe=recipe.name, science_hash=science, reward_id=recipe.reward.id, reward_range=(low, high))
    return Held(recipe.judge, declared, baseline, recipe.name)


def _label(runs: Sequence[Run], name: str) -> str | None:
    found = {str(run.labels[name]): run for run in runs if run.labels.get(name)}
    if len(found) > 1:
        raise ReportError(f"the runs are labelled with different {name}s: {', '.join(sorted(found))}: judge them apart")
    return next(iter(found), None)
