"""What running a set of cells would take: layout, memory, devices, time, and what stands against it. Pure; a plan of thousands of cells takes a second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from matrix.architecture import Architecture, UnknownArchitecture, read_architecture
from matrix.declarations import Tier
from matrix.divisibility import layout_faults, vocabulary_note
from matrix.layout import Layout, read_layout
from matrix.loader import DeclaredCell, Matrix, collector_paused
from matrix.malformed import malformed
from matrix.memory import EngineMemory, TrainerMemory, engine_memory, trainer_memory
from matrix.memory_fit import memory_faults
from matrix.prerequisites import caveats, lacking
from matrix.problem import Problem
from matrix.resolver import compose_cell
from matrix.workload import Workload, read_workload


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a plan. `device_hours` of the seeds before the first look, `worst_device_hours` when every look is taken."""

    cell: DeclaredCell
    layout: Layout
    work: Workload
    nodes: int
    devices_class: int | None  # devices a CI step asks for, of each node
    minutes: float
    device_hours: float
    worst_device_hours: float
    trainer: TrainerMemory | None = None
    engine: EngineMemory | None = None
    faults: tuple[Problem, ...] = ()
    lacking: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class Plan:
    """The cells of a tier (or any set), and what is wrong with the set as a whole."""

    cells: list[PlannedCell]
    tier: Tier | None = None
    budget: list[str] = field(default_factory=list)

    @cached_property
    def device_hours(self) -> float:
        return sum(cell.device_hours for cell in self.runnable)

    @cached_property
    def worst_device_hours(self) -> float:
        return sum(cell.worst_device_hours for cell in self.runnable)

    @property
    def runnable(self) -> list[PlannedCell]:
        """Cells that lack nothing: the others take no device."""
        return [cell for cell in self.cells if not cell.lacking]

    @property
    def faults(self) -> list[Problem]:
        return sorted({fault for cell in self.cells for fault in cell.faults})


class Planner:
    """Plans cells of one matrix; what cells share (architectures, engines' defaults) is read once."""

    def __init__(self, matrix: Matrix):
        self.matrix = matrix
        self.architectures: dict[tuple[str, bool], Architecture] = {}
        self.utilization: dict[str, float] = {}

    def plan(self, cells: Iterable[DeclaredCell], tier: str | None = None) -> Plan:
        """The plan of `cells`, held to the budget of `tier`."""
        with collector_paused():
            plan = Plan([self.cell(cell) for cell in cells], self.matrix.tier_rules[tier] if tier else None)
        plan.budget = list(budget_faults(plan))
        return plan

    def cell(self, cell: DeclaredCell) -> PlannedCell:
        """One cell. Faults carry the place of the value to change."""
        matrix = self.matrix
        composed = compose_cell(matrix, cell)
        missing, here = lacking(matrix, cell), cell.declared.where("id")
        wrong = list(malformed(composed.values))
        if wrong:  # planned as if the cell said nothing, so that the plan still shows it
            faults = [Problem(composed.where(key, here), f"{cell}: {message}") for key, message in wrong]
            layout = Layout()
            work = read_workload({}, matrix.vime, self._utilization(cell), can_release=False)
            return PlannedCell(cell, layout, work, *_cost(cell, layout), faults=tuple(faults), lacking=tuple(missing))
        layout = read_layout(composed.values, matrix.vime)
        work = read_workload(composed.values, matrix.vime, self._utilization(cell), can_release=cell.hardware.value.platform != "cpu")
        found: list[tuple[tuple[str, ...], str]] = [*_machine(cell, layout, composed.values), *_needs(matrix, cell, composed.values)]
        notes, trainer, engine = caveats(matrix, cell), None, None
        try:
            model = self.architecture(cell)
        except UnknownArchitecture as error:
            notes.append(f"not estimated: {error}")
        else:
            shape = [*layout_faults(model, layout, work)]
            found += shape
            notes += [note for note in (vocabulary_note(model, layout),) if note]
            if not shape and cell.hardware.value.platform != "cpu":
                trainer, engine = trainer_memory(model, layout, work), engine_memory(model, layout, work, _device_bytes(cell))
                found += memory_faults(model, layout, work, cell.hardware.value)
        faults = [problem for problem in composed.problems if problem.message not in missing]
        faults += [Problem(composed.where(key, here), f"{cell}: {message}") for key, message in found]
        return PlannedCell(cell, layout, work, *_cost(cell, layout), trainer, engine, tuple(faults), tuple(missing), tuple(notes))

    def architecture(self, cell: DeclaredCell) -> Architecture:
        """Of what the cell runs: the model, or its twin (the model's own where it has none)."""
        twin = cell.model.value.twin if cell.hardware.value.twins else None
        at = (cell.model.value.name, twin is not None)
        if at not in self.architectures:
            self.architectures[at] = read_architecture(twin.config if twin else cell.model.value.architecture)
        return self.architectures[at]

    def _utilization(self, cell: DeclaredCell) -> float:
        """vLLM's default share of a device, in the version that the hardware names."""
        version = cell.hardware.value.versions.get("vllm", "")
        if version not in self.utilization:
            catalogue = self.matrix.catalogue("vllm", version)
            option = catalogue.sections["engine"].get("gpu_memory_utilization", {}) if catalogue else {}
            self.utilization[version] = float(option.get("default", 0.9))
        return self.utilization[version]


def _device_bytes(cell: DeclaredCell) -> float:
    return float(cell.hardware.value.device_memory_gib or 0) * 2**30


def _cost(cell: DeclaredCell, layout: Layout) -> tuple[int, int | None, float, float, float]:
    hardware, recipe = cell.hardware.value, cell.recipe.value
    nodes = layout.nodes(hardware.devices_per_node)
    each = layout.devices if nodes == 1 else hardware.devices_per_node
    classes = hardware.buildkite.classes if hardware.buildkite else []
    hours = layout.devices * cell.minutes / 60
    return nodes, next((size for size in classes if size >= each), None), cell.minutes, hours * recipe.seeds.initial, hours * recipe.judge.max_seeds


def _machine(cell: DeclaredCell, layout: Layout, values: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What the machines must have: nodes, devices, a class of agents, time."""
    hardware = cell.hardware.value
    nodes = layout.nodes(hardware.devices_per_node)
    said = values.get("placement", {}).get("nodes", 1)
    if nodes > hardware.max_nodes:
        yield (
            ("parallel",),
            f"{layout.devices} devices are {nodes} nodes of {hardware.devices_per_node} {hardware.name}; {hardware.max_nodes} are declared: "
            "lower parallel.* or rollout.engines, or raise max_nodes",
        )
    elif said != nodes:
        yield ("placement", "nodes"), f"{layout.devices} devices are {nodes} node(s) of {hardware.devices_per_node}; placement.nodes is {said}: write {nodes}"
    if layout.tensor > hardware.devices_per_node or layout.engine_tensor > hardware.devices_per_node:
        widest = max(layout.tensor, layout.engine_tensor)
        yield ("parallel", "tensor"), f"tensor parallelism of {widest} would cross nodes of {hardware.devices_per_node} devices, which widens log-prob gaps"
    if hardware.buildkite and nodes == 1 and layout.devices > hardware.buildkite.classes[-1]:
        yield ("parallel",), f"{layout.devices} devices; the largest class of agents in queue {hardware.buildkite.queue} has {hardware.buildkite.classes[-1]}"
    if cell.minutes * 60 > cell.limits.wall_s:
        yield (), f"{cell.minutes:g} minutes are expected of a run, and it is ended after {cell.limits.wall_s / 60:g}: set wall_minutes"


def _needs(matrix: Matrix, cell: DeclaredCell, values: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys that a setting leaves to the cell."""
    for name in cell.id.settings:
        for dotted in matrix.modes.settings[name].needs:
            key = tuple(dotted.split("."))
            group: Any = values
            for part in key:
                group = group.get(part) if isinstance(group, dict) else None
            if group is None or group == matrix.vime.defaults.get(key):
                yield key, f"the setting {name} needs {dotted}: set it in the cell's config"


def budget_faults(plan: Plan) -> Iterator[str]:
    """A tier that would take more than it may, with the cells that take most."""
    tier = plan.tier
    if tier is None:
        return
    if plan.device_hours > tier.device_hours:
        most = sorted(plan.runnable, key=lambda cell: -cell.device_hours)[:3]
        yield (
            f"tier {tier.name} takes {plan.device_hours:.1f} device-hours, its budget is {tier.device_hours:g}: {plan.device_hours - tier.device_hours:.1f} "
            f"too many. Most take {', '.join(f'{cell.cell} ({cell.device_hours:.1f})' for cell in most)}: move cells to another tier, or raise the budget"
        )
    for cell in plan.runnable:
        if cell.minutes > tier.max_minutes:
            yield f"{cell.cell} takes {cell.minutes:g} minutes, a run of tier {tier.name} may take {tier.max_minutes:g}: move it to another tier"
