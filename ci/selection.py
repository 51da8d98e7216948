"""Which cells a build runs, with all that their steps need. Written as one file, so that later steps of the build need no plan anew."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ci.settings import Settings
from matrix.problem import MatrixError, SelectionError
from matrix.rule import Strict

if TYPE_CHECKING:
    from matrix.affected import Affected
    from matrix.loader import DeclaredCell, Matrix
    from matrix.plan import PlannedCell

RUNNER_RETRIES = 2  # how often the runner itself makes a run again that was lost to the machine


class CellSteps(Strict):
    """What the steps of one cell are made of. `hours` are device-hours of one run; `minutes` the limit of a step."""

    cell: str
    key: str
    title: str
    hardware: str
    platform: str
    queue: str
    devices: int  # the resource class: what the step is given
    needed: int  # of them the run takes so many
    visible: str | None  # the variable that narrows the devices
    image: str | None
    pool: int  # steps of this class that may run at once
    seeds: list[int]
    more: list[int]  # further seeds, one a look, while the verdict is INCONCLUSIVE
    minutes: int
    hours: float
    disposition: str
    because: list[str] = []  # of a change


class Excluded(Strict):
    """A cell that was asked for and that no step can run."""

    cell: str
    reason: str


class Selected(Strict):
    """The selection of one build."""

    schema_version: int = 1
    tier: str | None
    build: str
    settings: str | None = None  # other files than the checkout's own, for the later steps
    matrix: str | None = None
    budget: float | None = None  # device-hours of the tier
    cells: list[CellSteps]
    excluded: list[Excluded] = []
    offered: list[CellSteps] = []  # not selected; a person may release them
    nothing: list[str] = []  # why a change selects no cell

    @property
    def hours(self) -> float:
        """Device-hours of the seeds before the first look."""
        return sum(cell.hours * len(cell.seeds) for cell in self.cells)

    @property
    def results(self) -> str:
        """Where the build's runs lie: a place of its own, because checkouts of agents live on."""
        return f"results/{self.build}"

    @property
    def report(self) -> str:
        return f"report/{self.build}"

    def file(self, scope: str = "") -> str:
        """Where the selection itself lies, in the checkout and among the artifacts."""
        return f"{self.results}/selection-{scope}.json" if scope else f"{self.results}/selection.json"

    def named(self, key: str) -> CellSteps:
        """By cell key or id. Raises SelectionError."""
        for cell in self.cells:
            if key in (cell.key, cell.cell):
                return cell
        raise SelectionError(f"no cell '{key}' in the selection of build {self.build}")

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        return path


@dataclass(frozen=True)
class Request:
    """What a person or a schedule asks for. `images`: digests by image name, for those that hardware files call unbuilt."""

    tier: str | None = None
    cells: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    changed_since: str | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    build: str = "build"


def read_selection(path: Path) -> Selected:
    """Raises SelectionError for a file that is missing or no selection."""
    try:
        return Selected.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise SelectionError(f"{path}: no such file: the step that uploads the pipeline writes it") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise SelectionError(f"{path}: no selection: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None


def digests(texts: Iterable[str]) -> dict[str, str]:
    """`NAME=sha256:…` as digest by name. Raises SelectionError for anything else: an image is named by its content."""
    found = {}
    for text in texts:
        name, _, digest = text.partition("=")
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            raise SelectionError(f"--image {text}: NAME=sha256:<64 hexadecimal digits> is wanted; a tag may be another image tomorrow")
        found[name] = digest
    return found


def choose(matrix: Matrix, request: Request, settings: Settings) -> Selected:
    """The selection. Raises SelectionError when nothing is selected and nothing says why, or a tier is over its budget; MatrixError for cells that cannot run
    as declared."""
    from matrix.plan import Planner

    found = _affected(matrix, request.changed_since) if request.changed_since else None
    asked = _asked(matrix, request)
    wanted = [cell for cell in asked if found is None or str(cell) in found.reasons]
    nothing = [] if wanted else _why_none(found, asked, request)
    planner = Planner(matrix)
    plan = planner.plan(wanted, request.tier if not request.hardware else None)
    if plan.faults:
        raise MatrixError(plan.faults)
    if plan.budget:
        raise SelectionError("; ".join(plan.budget))
    steps = [(cell, _excluded(cell, request.images)) for cell in plan.cells]
    reasons = found.reasons if found else {}
    rest = planner.plan([cell for _, cell in sorted(matrix.cells.items()) if cell not in wanted])
    return Selected(
        tier=request.tier,
        build=request.build,
        budget=plan.tier.device_hours if plan.tier else None,
        cells=[_steps(cell, request.images, settings, reasons.get(str(cell.cell), ())) for cell, why in steps if not why],
        excluded=[Excluded(cell=str(cell.cell), reason=why) for cell, why in steps if why],
        offered=[_steps(cell, request.images, settings, ()) for cell in rest.cells if not cell.faults and not _excluded(cell, request.images)],
        nothing=nothing,
    )


def _asked(matrix: Matrix, request: Request) -> list[DeclaredCell]:
    cells = matrix.select(tier=request.tier)
    if request.cells:
        wanted = {str(matrix.cell(name)) for name in request.cells}
        elsewhere = wanted - {str(cell) for cell in cells}
        if elsewhere:
            raise SelectionError(f"{', '.join(sorted(elsewhere))}: not in tier {request.tier}")
        cells = [cell for cell in cells if str(cell) in wanted]
    for name in request.hardware:
        matrix.select(hardware=name)  # raises for one that nobody declares
    cells = [cell for cell in cells if not request.hardware or cell.id.hardware in request.hardware]
    if not cells:
        raise SelectionError(
            f"no cell is declared for tier {request.tier} on {', '.join(request.hardware) or 'any hardware'}: an empty pipeline proves nothing"
        )
    return cells


def _affected(matrix: Matrix, revision: str) -> Affected:
    from matrix.affected import affected, changed_paths

    return affected(matrix, changed_paths(matrix.root.parent, revision))


def _why_none(found: Affected | None, asked: list[DeclaredCell], request: Request) -> list[str]:
    """Why a change selects no cell of those asked for. Raises SelectionError where nothing says why."""
    assert found is not None and asked
    told = [f"{path}: {why}" for path, why in sorted(found.none.items())]
    if found.reasons:
        told.append(f"{len(found.reasons)} other cells are affected, none of tier {request.tier} among them: {_some(sorted(found.reasons))}")
    if not told:
        raise SelectionError(
            f"nothing changed since {request.changed_since}, so no cell is selected, and an empty pipeline proves nothing: is the revision right?"
        )
    return told


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _excluded(cell: PlannedCell, images: Mapping[str, str]) -> str:
    """Why no step can run the cell; empty where one can."""
    hardware = cell.cell.hardware.value
    if cell.lacking:
        return cell.lacking[0]
    if hardware.buildkite is None:
        return f"{hardware.name} has no queue: add buildkite: to its hardware file"
    if cell.nodes > 1:
        return f"takes {cell.nodes} machines: the runner leases the devices of one (python -m matrix show {cell.cell} prints the commands)"
    if cell.devices_class is None:
        return f"no class of agents of {hardware.name} has {cell.layout.devices} devices"
    if hardware.image and hardware.image.digest == "unbuilt" and hardware.image.name not in images:
        return f"image {hardware.image.name} is unbuilt: run the image pipeline and write its digest to the hardware file"
    return ""


def _steps(cell: PlannedCell, images: Mapping[str, str], settings: Settings, because: Iterable[str]) -> CellSteps:
    declared, hardware = cell.cell, cell.cell.hardware.value
    recipe, limits = declared.recipe.value, declared.limits
    assert hardware.buildkite is not None and cell.devices_class is not None
    queue = hardware.buildkite.queue
    machines = hardware.buildkite.machines or settings.pools.get(queue, 1)
    first, count = recipe.seeds.candidates_from, recipe.seeds.initial
    seconds = limits.wall_s + RUNNER_RETRIES * limits.start_s
    return CellSteps(
        cell=str(declared),
        key=declared.key,
        title=recipe.title,
        hardware=hardware.name,
        platform=hardware.platform,
        queue=queue,
        devices=cell.devices_class,
        needed=cell.layout.devices,
        visible=hardware.visible_devices,
        image=_image(declared, images, settings),
        pool=max(1, machines * hardware.devices_per_node // cell.devices_class),
        seeds=list(range(first, first + count)),
        more=list(range(first + count, first + max(recipe.judge.max_seeds, count))),
        minutes=math.ceil(seconds / 60) + settings.margin_minutes,
        hours=round(cell.device_hours / count, 4),
        disposition=str(declared.disposition),
        because=list(because),
    )


def _image(cell: DeclaredCell, images: Mapping[str, str], settings: Settings) -> str | None:
    image = cell.hardware.value.image
    if image is None:
        return None
    digest = images.get(image.name) or image.digest
    return f"{settings.registry + '/' if settings.registry else ''}{image.name}@{digest}"
