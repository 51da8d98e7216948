"""What would run: `pytest --plan`. Nothing is started and nothing written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from e2e.cell_run import Options, candidate_seeds, unavailable
from e2e.leases import LeaseError
from e2e.machine import Offer, offer
from e2e.run_plan import finished_record, plan_run
from matrix.loader import DeclaredCell, Matrix
from matrix.plan import PlannedCell, Planner
from matrix.prerequisites import lacking_files
from matrix.problem import MatrixError


@dataclass(frozen=True)
class Preview:
    """One cell of a plan. `lacks` says why it would be NOT_RUN here."""

    cell: str
    what: str
    devices: int
    seeds: str
    minutes: float  # expected of the runs to be made
    lacks: str | None
    done: tuple[int, ...]  # seeds whose finished runs count
    fault: str = ""  # the first that `python -m matrix check` finds of it


def previews(matrix: Matrix, cells: Iterable[DeclaredCell], options: Options) -> list[Preview]:
    """What running the cells with these options would do."""
    planner = Planner(matrix)
    return [_preview(matrix, planner.cell(cell), options) for cell in cells]


def _preview(matrix: Matrix, planned: PlannedCell, options: Options) -> Preview:
    cell, recipe, devices = planned.cell, planned.cell.recipe.value, planned.layout.devices
    seeds = options.seeds or candidate_seeds(cell, recipe.seeds.initial)
    most = 0 if options.seeds else max(recipe.judge.max_seeds, len(seeds))
    what = f"{recipe.name} ({cell.rule.evidence})" + (f", {cell.framework.value.name}" if cell.framework else "")
    told = ",".join(map(str, seeds)) + (f" (at most {most})" if most > len(seeds) else "")
    fault = str(planned.faults[0]) if planned.faults else ""
    lacks = "; ".join(planned.lacking) or unavailable(cell, devices, _offer(cell)) or "; ".join(lacking_files(matrix, cell))
    if lacks:
        return Preview(str(cell), what, devices, told, 0.0, lacks, (), fault)
    try:
        plans = [plan_run(matrix, cell, seed, options.root, options.command, options.overrides) for seed in seeds]
    except MatrixError as error:
        return Preview(str(cell), what, devices, told, 0.0, str(error.problems[0]), ())
    done = () if options.rerun else tuple(plan.seed for plan in plans if finished_record(plan))
    return Preview(str(cell), what, devices, told, cell.minutes * (len(seeds) - len(done)), None, done, fault)


def _offer(cell: DeclaredCell) -> Offer:
    try:
        return offer(cell.hardware.value)
    except LeaseError as error:
        return Offer((), str(error))


def lines(found: list[Preview]) -> list[str]:
    """A line a cell, and how many would run here."""
    rows = [(one.cell, one.what, f"{one.devices} device{'s' * (one.devices != 1)}", f"seeds {one.seeds}", _does(one)) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    text = ["  ".join([*(f"{part:<{width}}" for part, width in zip(row, widths)), row[4]]).rstrip() for row in rows]
    able = [one for one in found if one.lacks is None]
    return [*text, f"{len(found)} cells: {len(able)} would run here, about {sum(one.minutes for one in able):.0f} min one after the other"]


def _does(one: Preview) -> str:
    fault = f" (at fault: {one.fault})" if one.fault else ""
    if one.lacks:
        return f"NOT_RUN here: {one.lacks}{fault}"
    finished = f"; finished before: {','.join(map(str, one.done))}" if one.done else ""
    return f"about {one.minutes:.0f} min{finished}{fault}"
