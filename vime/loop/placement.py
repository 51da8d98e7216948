"""Which worker runs on which device: a pure plan, and the Ray placement group that carries it out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from vime.config.check import engine_devices, world_size
from vime.config.tree import Config
from vime.errors import UserError
from vime.interrupts import check, shielded

COLOCATED_SHARE = 0.5  # two workers share one device


@dataclass(frozen=True)
class Bundle:
    """Devices that are taken together on one node, and who works on them."""

    devices: int
    trainer_ranks: tuple[int, ...] = ()
    engines: tuple[int, ...] = ()


def plan(config: Config) -> list[Bundle]:
    """colocate: a bundle per engine, shared with as many trainer ranks as it has devices. non-colocate: a bundle per trainer rank, then one per engine."""
    width = config.rollout.tensor_parallel
    if config.placement.mode == "colocate":
        return [Bundle(width, tuple(range(index * width, (index + 1) * width)), (index,)) for index in range(config.rollout.engines)]
    trainers = [Bundle(1, trainer_ranks=(rank,)) for rank in range(world_size(config))]
    return trainers + [Bundle(width, engines=(index,)) for index in range(config.rollout.engines)]


def devices_needed(config: Config) -> int:
    return sum(bundle.devices for bundle in plan(config))


def check_devices(config: Config, per_node: int, kind: str) -> int:
    """Devices of all nodes. Raises UserError when the plan needs more than there are."""
    there = per_node * config.placement.nodes
    needed = devices_needed(config)
    if needed > there:
        shared = " (shared)" if config.placement.mode == "colocate" else ""
        raise UserError(
            f"placement: {needed} devices{shared} are needed ({world_size(config)} trainer ranks, {engine_devices(config)} engine "
            f"devices, {config.placement.mode}), "
            f"but {config.placement.nodes} node(s) with {per_node} {kind} device(s) each have {there}: lower parallel.* or rollout.engines, "
            "or set placement.devices_per_node (on CPU a device is only a slot, and more slots than cores are allowed)"
        )
    return there


def place(config: Config, platform: Any, timeout_s: float) -> tuple[Any, dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
    """Create the placement group and return it with the Ray options of each trainer rank and of each engine. Raises UserError when it cannot be had in time."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundles = plan(config)
    share = COLOCATED_SHARE if config.placement.mode == "colocate" else 1.0
    group = placement_group([{platform.ray_resource: float(bundle.devices)} for bundle in bundles], strategy="PACK")
    if not _wait(group, timeout_s):
        raise UserError(
            f"placement: the cluster could not give {[bundle.devices for bundle in bundles]} {platform.ray_resource} within "
            f"{timeout_s:g} s; it has {ray.available_resources()}"
        )
    trainers: dict[int, dict[str, Any]] = {}
    engines: dict[int, dict[str, Any]] = {}
    for index, bundle in enumerate(bundles):
        strategy = {"scheduling_strategy": PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)}
        trainers.update({rank: {**platform.ray_options(share), **strategy} for rank in bundle.trainer_ranks})
        engines.update({engine: {**platform.ray_options(share * bundle.devices), **strategy} for engine in bundle.engines})
    return group, trainers, engines


def _wait(group: Any, timeout_s: float) -> bool:
    """Whether the placement group is there within `timeout_s`; in slices, as `vime/interrupts.py` says why."""
    until = time.monotonic() + timeout_s
    while True:
        with shielded():
            ready = group.wait(min(1.0, max(0.0, until - time.monotonic())))
        check()
        if ready or time.monotonic() >= until:
            return bool(ready)
