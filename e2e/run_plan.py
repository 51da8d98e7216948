"""A run before it is made: its configuration, command, environment, limits, and what makes it the same run as one that lies there."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.code_version import code_hash
from e2e.leases import Lease
from e2e.records import RunRecord, read_record
from matrix import frameworks
from matrix.canonical import content_hash
from matrix.declarations import Framework, Hardware, Limits
from matrix.layout import devices_needed
from matrix.loader import DeclaredCell, Matrix
from matrix.problem import SelectionError
from matrix.resolver import config_hash, resolve

INPUT = "input.yaml"
TRAIN = (sys.executable, "-m", "vime.cli", "train")  # the command of a cell without another framework; `INPUT --out RUN` follows

NO_LEASE = Lease((), ())


@dataclass
class RunPlan:
    """One run to be made."""

    cell: DeclaredCell
    seed: int
    root: Path  # of the results
    config: dict[str, Any]
    hash: str
    limits: Limits
    command: Sequence[str] = TRAIN
    overrides: Sequence[str] = ()  # key=value for `--set`: planted faults
    devices: int = 1  # how many it takes
    values: Mapping[str, Any] = field(default_factory=dict)  # of another framework's placeholders
    lease: Lease = NO_LEASE
    same_code: bool = True  # whether a finished run counts only if the code that made it is the code as it is now

    @property
    def directory(self) -> Path:
        return self.root / self.cell.key / f"seed-{self.seed}"

    @property
    def planned(self) -> int:
        return self.cell.recipe.value.judge.planned_steps

    @property
    def framework(self) -> Framework | None:
        return self.cell.framework.value if self.cell.framework else None

    @property
    def code(self) -> str:
        """What stands for the code: vime's sources and what they run on; of another framework, its declaration, which names the version."""
        return content_hash(self.framework.model_dump()) if self.framework else code_hash()

    def full_command(self) -> list[str]:
        if self.cell.framework:
            return frameworks.command(self.cell.framework, self.values, self.config)
        sets = [part for override in self.overrides for part in ("--set", override)]
        return [*self.command, str(self.directory / INPUT), *sets, "--out", str(self.directory)]

    def environment(self) -> dict[str, str]:
        """What the run's environment has beyond the runner's: what hardware and framework declare, and the devices leased for it."""
        own = frameworks.environment(self.cell.framework, self.values, self.config) if self.cell.framework else {}
        return self.cell.hardware.value.environment | own | visible(self.cell.hardware.value, self.lease.devices)


def visible(hardware: Hardware, devices: Sequence[int]) -> dict[str, str]:
    """The variable that shows a run its devices and no others."""
    return {hardware.visible_devices: ",".join(map(str, devices))} if hardware.visible_devices and devices else {}


def plan_run(matrix: Matrix, cell: DeclaredCell, seed: int, root: Path, command: Sequence[str] = TRAIN, overrides: Sequence[str] = ()) -> RunPlan:
    """The run of `cell` with `seed`. Raises as `matrix.resolve` does, also for a framework's command that asks for what there is not."""
    config = resolve(cell, seed, matrix)
    plan = RunPlan(cell, seed, root.resolve(), config, config_hash(config, matrix), cell.limits, command, overrides)
    plan.devices = devices_needed(config, matrix.vime)
    plan.values = frameworks.run_values(matrix, cell, config, seed, plan.directory, sys.executable)
    if plan.framework and (tuple(command) != TRAIN or overrides):
        raise SelectionError(f"{cell} is run by {plan.framework.title}: another training command, --set and planted faults are for vime's cells")
    plan.full_command()
    return plan


@dataclass(frozen=True)
class Earlier:
    """What lies there of a planned run: a finished one, and in what it differs from the one planned."""

    record: RunRecord
    differs: tuple[str, ...] = ()


def finished_before(plan: RunPlan) -> Earlier | None:
    """The finished run that lies where `plan` would put its own, or None. It is the same run when nothing differs (docs/running-cells.md)."""
    record = read_record(plan.directory)
    if record is None or not record.finished:
        return None
    same = {"configuration": record.config_hash == plan.hash, "command": record.command == plan.full_command(), "code": record.code_hash == plan.code}
    return Earlier(record, tuple(name for name, equal in same.items() if not equal))


def finished_record(plan: RunPlan) -> RunRecord | None:
    """The record of a finished run that need not be made again, or None."""
    found = finished_before(plan)
    ignored = set() if plan.same_code else {"code"}
    return found.record if found and not set(found.differs) - ignored else None
