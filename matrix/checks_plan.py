"""What a tree promises about running: every cell plans without a fault, tiers keep their budgets, hardware cells have both kinds of evidence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from matrix.architecture import UnknownArchitecture, read_architecture
from matrix.declarations import Model
from matrix.loader import Declared, DeclaredCell, Matrix
from matrix.plan import Planner
from matrix.prerequisites import lacking_settings
from matrix.problem import Problem, Where
from matrix.resolver import model_path

WARM_START = "no warm start"  # how a cell says that its twin has none of the recipe's name


def plan_problems(matrix: Matrix) -> Iterator[Problem]:
    """Faults of the plan of every cell, budgets of every tier, evidence of every hardware cell."""
    planner = Planner(matrix)
    planned = {str(cell): planner.cell(cell) for cell in matrix.cells.values()}
    for cell in planned.values():
        yield from cell.faults
    for tier in matrix.tiers:
        plan = planner.plan(matrix.select(tier=tier), tier)
        yield from (Problem(Where(str(matrix.root / "tiers.yaml")), text) for text in plan.budget)
    yield from _evidence(matrix)


def _evidence(matrix: Matrix) -> Iterator[Problem]:
    """Exactness in minutes and convergence in hours: a hardware cell without either proves half of what its name says."""
    kinds: dict[tuple[str, str, str], dict[str, DeclaredCell]] = defaultdict(dict)
    for cell in matrix.cells.values():
        if not cell.hardware.value.twins:
            kinds[cell.id.model, cell.id.hardware, cell.id.mode].setdefault(cell.recipe.value.judge.evidence, cell)
    for found in kinds.values():
        for wanted in {"exactness", "convergence"} - set(found):
            cell = next(iter(found.values()))
            yield Problem(cell.declared.where("id"), f"'{cell.id}' has no cell with evidence: {wanted} beside it: declare one (another recipe under a variant)")


def missing_prerequisites(matrix: Matrix, cell: DeclaredCell) -> Iterator[Problem]:
    """A cell that cannot be run from this checkout says so (`unvalidated`), or what it lacks is a fault."""
    said, missing = cell.declared.value.unvalidated, model_path(matrix, cell)[1]
    if said and WARM_START in said and not missing:
        yield Problem(cell.declared.where("unvalidated"), f"'{said}', and the twin has it: say what is not known yet, or remove the line")
    if said:
        return
    yield from missing
    for text in lacking_settings(matrix, cell):
        yield Problem(cell.declared.where("id"), f"'{cell}' cannot run: {text}; declare it unvalidated, with the reason, until it can")


def model_problems(model: Declared[Model]) -> Iterator[Problem]:
    """The published number of parameters against the architecture's (with and without MTP layers, which some publish with copies of the embeddings)."""
    published = model.value.parameters
    try:
        shape = read_architecture(model.value.architecture)
    except UnknownArchitecture as error:
        if published is not None:
            yield Problem(model.where("architecture"), str(error))
        return
    with_mtp = shape.parameters + shape.mtp_parameters
    known = (shape.parameters, with_mtp, with_mtp + len(shape.mtp) * (shape.embedding + shape.head))
    if published is not None and published not in known:
        counts = ", ".join(f"{count:,}" for count in dict.fromkeys(known))
        yield Problem(model.where("parameters"), f"parameters: {published:,} are published, the architecture has {counts}: one of the facts is wrong")
