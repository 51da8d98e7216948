"""Which worker runs on which device: a pure plan, and the Ray placement group that carries it out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vime.config.check import engine_devices, world_size
from vime.config.tree import Config
from vime.errors import UserError
from vime.interrupts import check, shielded
from vime.loop.workers import Pending
from vime.platforms.base import Platform
from vime.platforms.visible import in_order

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
    """Devices of all nodes. Raises UserError when the plan needs more than there are, or its engines do not fit into single nodes."""
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
    width = config.rollout.tensor_parallel
    room = per_node // width * config.placement.nodes
    if room < config.rollout.engines:
        raise UserError(
            f"placement: {config.rollout.engines} engine(s) of {width} devices (rollout.tensor_parallel) do not fit: an engine's devices are of one node, and "
            f"{config.placement.nodes} node(s) with {per_node} {kind} device(s) each have room for {room}: lower rollout.tensor_parallel or rollout.engines"
        )
    return there


@dataclass(frozen=True)
class Seat:
    """Where one worker runs: its Ray options, and the variables that show it its devices."""

    options: dict[str, Any]
    environment: dict[str, str]


@dataclass(frozen=True)
class Seats:
    """Every worker's seat, by trainer rank and by engine index. `group` keeps the devices taken as long as it lives."""

    group: Any
    trainers: dict[int, Seat]
    engines: dict[int, Seat]


def place(config: Config, platform: Platform, timeout_s: float) -> Seats:
    """Create the placement group and seat every worker. Raises UserError when the devices cannot be had in time."""
    import ray
    from ray.util.placement_group import placement_group

    bundles = plan(config)
    group = placement_group([{platform.ray_resource: float(bundle.devices)} for bundle in bundles], strategy="PACK")
    if not _wait(group, timeout_s):
        raise UserError(
            f"placement: the cluster could not give {[bundle.devices for bundle in bundles]} {platform.ray_resource} within "
            f"{timeout_s:g} s; it has {ray.available_resources()}"
        )
    found = _locate(group, bundles, platform, timeout_s) if platform.visible_devices_variable or config.placement.nodes > 1 else None
    return seat(config, platform, group, bundles, found)


def seat(config: Config, platform: Platform, group: Any, bundles: list[Bundle], found: list[Located] | None) -> Seats:
    """Workers to bundles. With `found`, bundles of one kind are taken by node and device number, so that neighbouring ranks sit on neighbouring devices."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    share = COLOCATED_SHARE if config.placement.mode == "colocate" else 1.0
    seats = Seats(group, {}, {})
    for bundle, index in zip(bundles, order(bundles, found), strict=True):
        strategy = {"scheduling_strategy": PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)}
        ids = found[index].ids if found else ()
        for slot, rank in enumerate(bundle.trainer_ranks):
            seats.trainers[rank] = Seat({**platform.ray_options(share), **strategy}, shown(platform, ids[slot : slot + 1]))
        for engine in bundle.engines:
            seats.engines[engine] = Seat({**platform.ray_options(share * bundle.devices), **strategy}, shown(platform, ids))
    return seats


def order(bundles: list[Bundle], found: list[Located] | None) -> list[int]:
    """For each planned bundle the group's bundle it gets: of those of the same kind, the next by node and device."""
    if found is None:
        return list(range(len(bundles)))
    waiting: dict[tuple[int, bool], list[int]] = {}
    for index in sorted(range(len(bundles)), key=lambda index: (found[index].node, [(len(name), name) for name in found[index].ids], index)):
        waiting.setdefault((bundles[index].devices, bool(bundles[index].engines)), []).append(index)
    return [waiting[bundle.devices, bool(bundle.engines)].pop(0) for bundle in bundles]


def shown(platform: Platform, ids: Sequence[str]) -> dict[str, str]:
    return {platform.visible_devices_variable: ",".join(ids)} if platform.visible_devices_variable else {}


@dataclass(frozen=True)
class Located:
    """What Ray gave a bundle: the node's address and the devices' physical ids, in ascending order."""

    node: str
    ids: tuple[str, ...]


def _locate(group: Any, bundles: list[Bundle], platform: Platform, timeout_s: float) -> list[Located]:
    """Ask a short task in each bundle, which takes all of the bundle's devices, where it is."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    resource, pending = platform.ray_resource, []
    for index, bundle in enumerate(bundles):
        strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
        own = {"CPU": {"num_cpus": bundle.devices}, "GPU": {"num_cpus": 0, "num_gpus": bundle.devices}}
        wanted = own.get(resource, {"num_cpus": 0, "resources": {resource: bundle.devices}})
        pending.append(ray.remote(_where).options(scheduling_strategy=strategy, **wanted).remote(resource))
    gathered = [Pending(reference, f"bundle {index}", "locate").result(timeout_s, "placement") for index, reference in enumerate(pending)]
    return numbered([Located(node, tuple(in_order(ids))) for node, ids in gathered], bundles)


def numbered(found: list[Located], bundles: list[Bundle]) -> list[Located]:
    """Ray numbers the devices of vendors it knows. Those of other resources are counted here, on each node from 0."""
    taken: dict[str, int] = {}
    out = []
    for place, bundle in zip(found, bundles, strict=True):
        first = taken.get(place.node, 0)
        taken[place.node] = first + bundle.devices
        out.append(place if place.ids else Located(place.node, tuple(map(str, range(first, first + bundle.devices)))))
    return out


def _where(resource: str) -> tuple[str, list[str]]:
    import ray

    context = ray.get_runtime_context()
    return ray.util.get_node_ip_address(), context.get_accelerator_ids().get(resource, [])


def _wait(group: Any, timeout_s: float) -> bool:
    """Whether the placement group is there within `timeout_s`; in slices, as `vime/interrupts.py` says why."""
    until = time.monotonic() + timeout_s
    while True:
        with shielded():
            ready = group.wait(min(1.0, max(0.0, until - time.monotonic())))
        check()
        if ready or time.monotonic() >= until:
            return bool(ready)
