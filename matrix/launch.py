"""How a person starts one run of a cell by hand: environment, container, what has to be made first, Ray on several machines, training, judging."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix.declarations import Framework
from matrix.frameworks import command, environment, run_values
from matrix.layout import Layout, read_layout
from matrix.loader import Declared, DeclaredCell, Matrix
from matrix.prerequisites import caveats, lacking, lacking_files
from matrix.problem import shown
from matrix.resolver import baseline_directory, compose_cell, resolve

HEAD = "$HEAD_IP"
PORT = 6379


@dataclass(frozen=True)
class Launch:
    """Commands by where they are typed, all from the root of the checkout. `remarks` are what a person should know before."""

    environment: dict[str, str]
    container: str | None
    prepare: list[str]
    head: list[str]  # ray start on the first machine; empty on one machine, where vime starts Ray itself
    workers: list[str]  # on each other machine
    run: list[str]
    after: list[str]
    remarks: list[str]

    def lines(self) -> list[str]:
        """As a person reads them: comments and shell commands."""
        out = [f"# {remark}" for remark in self.remarks]
        if self.container:
            out += ["# container, on every machine", self.container]
        if self.environment:
            out += ["# environment, on every machine", *(f"export {name}={value}" for name, value in self.environment.items())]
        for title, commands in (("once", self.prepare), ("first machine", self.head), ("every other machine", self.workers)):
            out += [f"# {title}", *commands] if commands else []
        title = "first machine, when the others have joined" if self.head else "run and judge"
        return [*out, f"# {title}", *self.run, *(["# afterwards, on every machine", *self.after] if self.after else [])]


def launch(matrix: Matrix, cell: DeclaredCell, seed: int) -> Launch:
    """The commands for one run. Raises as `matrix.resolver.resolve` does for cells that contradict themselves."""
    hardware = cell.hardware.value
    layout = read_layout(compose_cell(matrix, cell).values, matrix.vime)
    nodes = layout.nodes(hardware.devices_per_node)
    several = nodes > 1
    start = f"ray start --disable-usage-stats {_resources(cell)}"
    return Launch(
        environment=dict(hardware.environment) | _devices(cell, layout, nodes),
        container=_container(cell, layout, nodes),
        prepare=prepare(matrix, cell),
        head=[f"{start} --head --node-ip-address={HEAD} --port={PORT}"] if several else [],
        workers=[f"{start} --address={HEAD}:{PORT}"] if several else [],
        run=_run(matrix, cell, seed, several),
        after=["ray stop"] if several else [],
        remarks=[
            *(f"cannot run yet: {reason}" for reason in lacking(matrix, cell)),
            *caveats(matrix, cell),
            *lacking_files(matrix, cell),
            *([f"{nodes} machines of {hardware.devices_per_node} devices; {HEAD} is the first one's address"] if several else []),
        ],
    )


def _run(matrix: Matrix, cell: DeclaredCell, seed: int, several: bool) -> list[str]:
    out = f"results/{cell.key}/seed-{seed}"
    if cell.framework:
        return _run_foreign(matrix, cell, cell.framework, seed, out)
    address = f" --set placement.ray_address={HEAD}:{PORT}" if several else ""
    return [
        f"python -m matrix show {cell.id} --seed {seed} > {cell.key}.yaml",
        f"vime train {cell.key}.yaml{address} --out {out}",
        f"python -m reports judge {out} --baseline {shown(baseline_directory(cell, matrix))}",
        *([] if several else [f"python -m e2e run {cell.id} --seeds {seed}     # the three at once"]),
    ]


def _run_foreign(matrix: Matrix, cell: DeclaredCell, framework: Declared[Framework], seed: int, out: str) -> list[str]:
    """Another framework's command, and the one that also keeps the manifest by which its log can be judged."""
    config = resolve(cell, seed, matrix)
    values = run_values(matrix, cell, config, seed, out)
    exports = [f"{name}={shlex.quote(value)}" for name, value in environment(framework, values, config).items()]
    return [
        f"mkdir -p {out} && python -m matrix show {cell.id} --seed {seed} > {out}/input.yaml",
        " ".join([*exports, shlex.join(command(framework, values, config)), f"> {out}/stdout.log"]),
        f"python -m e2e run {cell.id} --seeds {seed}     # makes the run and judges it",
    ]


def prepare(matrix: Matrix, cell: DeclaredCell) -> list[str]:
    """What has to be made once before the first run: the converted checkpoint of `torch-dist`. The runner makes it (`e2e/prepare.py`)."""
    found = conversion(compose_cell(matrix, cell).values)
    if found is None:
        return []
    weights, target = found
    here = shown(Path(weights)) if Path(weights).is_absolute() else weights
    return [f"vime convert hf-to-torch-dist {here} {shown(Path(target))}"]


def conversion(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """(weights, where their converted form belongs) of a configuration that loads `torch-dist`; None for every other."""
    model = config["model"]
    return (str(model["path"]), str(model["torch_dist_path"])) if model.get("load") == "torch-dist" else None


def _resources(cell: DeclaredCell) -> str:
    hardware = cell.hardware.value
    if hardware.ray_resource == "GPU":
        return f"--num-gpus={hardware.devices_per_node}"
    if hardware.ray_resource == "CPU":
        return f"--num-cpus={hardware.devices_per_node}"
    return f"--resources='{json.dumps({hardware.ray_resource: hardware.devices_per_node})}'"


def _devices(cell: DeclaredCell, layout: Layout, nodes: int) -> dict[str, str]:
    """Which devices the run may use: the first ones of a machine that it does not fill."""
    variable = cell.hardware.value.visible_devices
    count = cell.hardware.value.devices_per_node if nodes > 1 else layout.devices
    return {variable: ",".join(str(index) for index in range(count))} if variable else {}


def _container(cell: DeclaredCell, layout: Layout, nodes: int) -> str | None:
    hardware = cell.hardware.value
    if hardware.image is None or hardware.image.digest == "unbuilt":
        return None
    count = hardware.devices_per_node if nodes > 1 else layout.devices
    files = [name[:-1] + str(index) for name in hardware.device_files if name.endswith("*") for index in range(count)]
    files += [name for name in hardware.device_files if not name.endswith("*")]
    devices = " ".join(f"--device {file}" for file in files) if files else f"--gpus '\"device={','.join(map(str, range(count)))}\"'"
    return f"docker run --rm -it --network host --shm-size 64g {devices} -v $PWD:/vime -w /vime {hardware.image.name}@{hardware.image.digest}"
