"""Planted faults: the same run of a cell with one thing broken, to show that the verdict notices. vime's own code holds no fault.

    python -m e2e.faults                                         lists them
    python -m e2e run qwen3-4b.cpu.colocate --fault sign-flip    runs a cell with one, under <results>/fault-sign-flip/
    python -m e2e.faults sign-flip train CONFIG --out RUN        what the runner starts: `vime train` with one function replaced

This file is two things that never meet in one process. The harness uses the list and `plant`. The launcher (`main`) is the run's own process: there, and only
there, vime is imported, its function replaced in the driver, and its command line called.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from e2e.cell_run import Options
    from matrix.loader import DeclaredCell


@dataclass(frozen=True)
class Fault:
    """What is broken, and how: by a function that patches vime in the run's process, or by configuration (`key`: factor)."""

    name: str
    meaning: str
    patch: Callable[[], None] | None = None
    factor: tuple[str, float] | None = None


def _shuffle_rewards() -> None:
    """Each group keeps its rewards and gives them to other samples of the group: the mean is right, the advantage of a sample is noise."""
    import random

    pool = import_module("vime.rewards.pool").RewardPool
    score = pool.score

    def shuffled(self: Any, samples: Any) -> Any:
        told = score(self, samples)
        groups: dict[int, list[Any]] = {}
        for sample in samples:
            groups.setdefault(sample.group_id, []).append(sample)
        for group, members in groups.items():
            given = [(sample.reward, sample.reward_error) for sample in members]
            random.Random(f"{group}").shuffle(given)
            for sample, (reward, error) in zip(members, given, strict=True):
                sample.reward, sample.reward_error = reward, error
        return told

    pool.score = shuffled


def _sync_off() -> None:
    """The first push is real; later ones say they were and leave the engines as they are."""
    sync = import_module("vime.weights.session").WeightSync
    push = sync.push

    def once(self: Any, version: int) -> Any:
        report = getattr(self, "_fault_report", None)
        if report is None:
            self._fault_report = report = push(self, version)
        return dataclasses.replace(report, version=version)

    sync.push = once


def _sync_every(steps: int) -> Callable[[], None]:
    def patch() -> None:
        sync = import_module("vime.weights.session").WeightSync
        push = sync.push

        def sometimes(self: Any, version: int) -> Any:
            report = getattr(self, "_fault_report", None)
            if report is None or version % steps == 0:
                self._fault_report = report = push(self, version)
            return dataclasses.replace(report, version=version)

        sync.push = sometimes

    return patch


def _sign_flip() -> None:
    rules: Any = import_module("vime.algos.advantages")
    advantages = rules.group_advantages
    rules.group_advantages = lambda *arguments, **options: -advantages(*arguments, **options)


def _cold_sampler() -> None:
    """The engine samples at nine tenths of the temperature that the trainer assumes: the reward rises."""
    router: Any = import_module("vime.rollout.router")
    sampling = router.Sampling

    def colder(temperature: float, *arguments: Any, **options: Any) -> Any:
        return sampling(0.9 * temperature, *arguments, **options)

    router.Sampling = colder


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("lr-tenth", "learning rate × 0.1", factor=("train.lr", 0.1)),
        Fault("rewards-shuffled", "rewards shuffled within each group", _shuffle_rewards),
        Fault("sync-off", "weights are pushed once and never again", _sync_off),
        Fault("sync-every-4", "weights are pushed every fourth step only", _sync_every(4)),
        Fault("sign-flip", "advantages with the wrong sign", _sign_flip),
        Fault("sampler-cold", "the engine samples at 0.9 of the temperature", _cold_sampler),
    )
}


def named(name: str) -> Fault:
    """The fault of that name. Raises SelectionError with the nearest."""
    from matrix.problem import SelectionError, nearest

    if name not in FAULTS:
        raise SelectionError(f"no fault '{name}'{nearest(name, FAULTS)}")
    return FAULTS[name]


def plant(name: str, options: Options, cell: DeclaredCell) -> Options:
    """The options of a run with the fault: results of their own, so that they are never taken for the cell's."""
    from matrix.fragments import lookup

    fault = named(name)
    planted = dataclasses.replace(options, root=options.root / f"fault-{name}")
    if fault.factor is not None:
        key, factor = fault.factor
        value = lookup(cell.recipe.value.config, tuple(key.split("."))) * factor
        return dataclasses.replace(planted, overrides=(*options.overrides, f"{key}={value:.12g}"))
    return dataclasses.replace(planted, command=(sys.executable, "-m", "e2e.faults", name, "train"))


def main(arguments: list[str]) -> None:
    """The launcher: break one function of vime in this process, then be `vime`."""
    if not arguments:
        for fault in FAULTS.values():
            print(f"{fault.name:<18} {fault.meaning}")
        return
    name, *rest = arguments
    patch = named(name).patch
    if patch is None:
        raise SystemExit(f"'{name}' is a matter of configuration: use python -m e2e run CELL --fault {name}")
    patch()
    sys.argv = ["vime", *rest]
    import_module("vime.cli").main()


if __name__ == "__main__":
    main(sys.argv[1:])
