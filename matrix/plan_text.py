"""A plan as a person reads it, and as a program does."""

from __future__ import annotations

import json
from typing import Any

from matrix.memory import GIB
from matrix.memory_fit import engine_text, trainer_text
from matrix.plan import Plan, PlannedCell

AXES = (("tensor", "TP"), ("pipeline", "PP"), ("context", "CP"), ("data", "DP"), ("expert", "EP"), ("expert_tensor", "ETP"))


def layout_text(cell: PlannedCell) -> str:
    """`8 shared: train TP4 DP2 EP8, rollout 2 × TP4` or `4 + 4: …`."""
    layout = cell.layout
    axes = " ".join(f"{name}{getattr(layout, axis)}" for axis, name in AXES if getattr(layout, axis) > 1) or "1 rank"
    engines = f"{layout.engines} × TP{layout.engine_tensor}" + (" EP" if layout.engine_expert else "")
    split = f"{layout.devices} shared" if layout.colocate else f"{layout.trainer_devices} + {layout.engine_devices}"
    return f"{split}: train {axes}{' SP' if layout.sequence_parallel else ''}, rollout {engines}"


def lines(plan: Plan, verbose: bool = False) -> list[str]:
    """The table, faults, and totals against the budget."""
    rows = [("cell", "devices", "GiB train/engine", "minutes", "device-h", "state"), *(_row(cell) for cell in plan.cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    out = ["  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in rows]
    if verbose:
        for cell in plan.cells:
            out += ["", *details(cell)]
    if plan.faults:
        out += ["", *(str(fault) for fault in plan.faults)]
    return [*out, "", *_totals(plan)]


def _row(cell: PlannedCell) -> tuple[str, ...]:
    machines = f" on {cell.nodes} machines" if cell.nodes > 1 else ""
    memory = f"{cell.trainer.total / GIB:.1f} / {cell.engine.total / GIB:.1f}" if cell.trainer and cell.engine else "-"
    return (str(cell.cell), f"{layout_text(cell)}{machines}", memory, f"{cell.minutes:g}", f"{cell.device_hours:.2f}", state(cell))


def state(cell: PlannedCell) -> str:
    """The one word that matters most: fault, lacking, unvalidated, or the disposition."""
    if cell.faults:
        return "FAULT"
    if cell.lacking:
        return f"lacking: {cell.lacking[0]}"
    return "unvalidated" if cell.cell.unvalidated else str(cell.cell.disposition)


def details(cell: PlannedCell) -> list[str]:
    """One cell at length."""
    out = [f"{cell.cell}: {cell.cell.recipe.value.title} ({cell.cell.recipe.value.judge.evidence})", f"  {layout_text(cell)}"]
    if cell.trainer and cell.engine:
        hardware = cell.cell.hardware.value
        usable = f"of {hardware.device_memory_gib:g}, {hardware.reserved_gib:g} reserved"
        out.append(f"  training {cell.trainer.total / GIB:.1f} GiB a device {usable} ({trainer_text(cell.trainer)})")
        out.append(f"  engine {cell.engine.total / GIB:.1f} GiB a device ({engine_text(cell.engine)}; {cell.engine.wanted} wanted)")
    agents = f", agents of class {cell.devices_class}" if cell.devices_class else ""
    out.append(f"  {cell.minutes:g} minutes, {cell.device_hours:.2f} to {cell.worst_device_hours:.2f} device-hours{agents}")
    return [*out, *(f"  lacking: {text}" for text in cell.lacking), *(f"  {note}" for note in cell.notes)]


def _totals(plan: Plan) -> list[str]:
    tier = plan.tier
    budget = f" of {tier.device_hours:g} (tier {tier.name})" if tier else ""
    skipped = len(plan.cells) - len(plan.runnable)
    left_out = f"; {skipped} lack something and take none" if skipped else ""
    hours = f"{plan.device_hours:.2f} device-hours{budget}, at most {plan.worst_device_hours:.2f} with every seed"
    out = [f"{len(plan.cells)} cells, {len(plan.runnable)} can run: {hours}{left_out}"]
    return [*out, *pools(plan), *plan.budget]


def pools(plan: Plan) -> list[str]:
    """How long each pool of machines is busy, where its size is known."""
    found: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for cell in plan.runnable:
        hardware = cell.cell.hardware.value
        if hardware.buildkite and hardware.buildkite.machines:
            found[hardware.name] = found.get(hardware.name, 0.0) + cell.device_hours
            sizes[hardware.name] = hardware.buildkite.machines * hardware.devices_per_node
    return [
        f"{name}: {hours:.1f} device-hours on {sizes[name]} devices, {hours / sizes[name]:.1f} hours when none waits" for name, hours in sorted(found.items())
    ]


def as_data(plan: Plan) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "tier": plan.tier.name if plan.tier else None,
        "budget_device_hours": plan.tier.device_hours if plan.tier else None,
        "device_hours": round(plan.device_hours, 4),
        "worst_device_hours": round(plan.worst_device_hours, 4),
        "faults": [str(fault) for fault in plan.faults],
        "over_budget": plan.budget,
        "cells": [_cell_data(cell) for cell in plan.cells],
    }


def as_json_lines(plan: dict[str, Any]) -> str:
    """`as_data` as one JSON object with a line for each cell: json's own indentation takes seconds for thousands of them."""
    head = json.dumps({**plan, "cells": []}, indent=1)
    return head.replace('"cells": []', '"cells": [\n  ' + ",\n  ".join(map(json.dumps, plan["cells"])) + "\n ]", 1) if plan["cells"] else head


def _cell_data(cell: PlannedCell) -> dict[str, Any]:
    hardware, layout = cell.cell.hardware.value, cell.layout
    memory = None
    if cell.trainer and cell.engine:
        trainer = {name: round(value / GIB, 3) for name, value in vars(cell.trainer).items()}
        engine = {name: round(value / GIB, 3) for name, value in vars(cell.engine).items() if name != "wanted"}
        memory = {"trainer_gib": trainer, "engine_gib": engine, "concurrent_sequences": cell.engine.concurrent, "device_gib": hardware.device_memory_gib}
    return {
        "cell": str(cell.cell),
        "key": cell.cell.key,
        "recipe": cell.cell.recipe.value.name,
        "evidence": cell.cell.recipe.value.judge.evidence,
        "disposition": str(cell.cell.disposition),
        "hardware": hardware.name,
        "queue": hardware.buildkite.queue if hardware.buildkite else None,
        "devices": layout.devices,
        "nodes": cell.nodes,
        "devices_class": cell.devices_class,
        "layout": {name: getattr(layout, name) for name in ("tensor", "pipeline", "context", "data", "expert", "expert_tensor", "engines", "engine_tensor")},
        "minutes": cell.minutes,
        "device_hours": round(cell.device_hours, 4),
        "worst_device_hours": round(cell.worst_device_hours, 4),
        "memory": memory,
        "faults": [str(fault) for fault in cell.faults],
        "lacking": list(cell.lacking),
        "notes": list(cell.notes),
    }
