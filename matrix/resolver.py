"""From a declared cell to the whole vime configuration of one run, and to the hash of its science."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from matrix.canonical import SHORT, content_hash
from matrix.declarations import WarmStart
from matrix.fragments import Composed, Fragment, compose
from matrix.loader import DeclaredCell, Matrix, load
from matrix.problem import MatrixError, Problem
from matrix.weights import file_hash, tensors

SCIENCE_VERSION = 1


def resolve(cell: str | DeclaredCell, seed: int, matrix: Matrix | None = None) -> dict[str, Any]:
    """The configuration that `vime train` is given for one run of a cell: recipe, hardware, mode and layout joined, with the weights' path and the labels.

    Raises SelectionError for a cell that is not declared, MatrixError for declarations that contradict each other or miss a warm start.
    """
    matrix = matrix or load()
    declared = matrix.cell(cell) if isinstance(cell, str) else cell
    composed = compose_cell(matrix, declared)
    if composed.problems:
        raise MatrixError(composed.problems)
    return {**composed.values, "seed": seed, "labels": labels(matrix, declared)}


def compose_cell(matrix: Matrix, cell: DeclaredCell) -> Composed:
    """The cell's configuration without seed and labels, each value with its place; contradictions are in `problems`."""
    recipe = cell.recipe
    fragments = [Fragment(recipe.value.config, recipe.document, (*recipe.at, "config")), *layout_fragments(matrix, cell)]
    fragments.append(Fragment({"reward": {"range": recipe.value.reward.range}}, recipe.document, (*recipe.at, "reward", "range")))
    fragments.append(Fragment({"name": cell.key}, cell.declared.document, cell.declared.at))
    path, problems = model_path(matrix, cell)
    fragments.append(Fragment({"model": {"path": str(path)}}, cell.model.document, cell.model.at))
    composed = compose(fragments)
    if composed.values["model"].get("load") == "torch-dist":
        composed.values["model"].setdefault("torch_dist_path", str(torch_dist_path(matrix, cell, path)))
    composed.problems += problems
    return composed


def torch_dist_path(matrix: Matrix, cell: DeclaredCell, weights: Path | str) -> Path:
    """Where the converted form of a cell's weights lies (`vime convert hf-to-torch-dist` makes it): beside the checkout's other caches.

    Named after their content where it is declared: weights made anew are converted anew.
    """
    found, revision = warm_start(cell), cell.model.value.hf_revision
    content = found.sha256 if found else revision if revision != "unpinned" else ""
    return matrix.root.parent / ".cache" / "torch-dist" / "-".join(filter(None, (Path(weights).name, content[:SHORT])))


def layout_fragments(matrix: Matrix, cell: DeclaredCell) -> list[Fragment]:
    """What hardware, mode and the cell itself set: where and how it runs."""
    hardware = cell.hardware
    return [
        Fragment(hardware.value.config, hardware.document, (*hardware.at, "config")),
        *matrix.modes.fragments(cell.id.settings),
        *(
            Fragment(hardware.value.settings[name], hardware.document, (*hardware.at, "settings", name))
            for name in cell.id.settings
            if name in hardware.value.settings
        ),
        Fragment(cell.declared.value.config, cell.declared.document, (*cell.declared.at, "config")),
    ]


def warm_start(cell: DeclaredCell) -> WarmStart | None:
    """The weights that runs of this cell begin from, or None where the recipe starts from the model's published ones or the twin has none of that name."""
    twin, name = cell.model.value.twin, cell.recipe.value.warm_start
    return twin.warm_starts.get(name) if cell.hardware.value.twins and twin and name else None


def model_path(matrix: Matrix, cell: DeclaredCell) -> tuple[Path | str, list[Problem]]:
    """The directory (or hub id) that the run loads, and why there is none."""
    model, recipe = cell.model, cell.recipe
    if not cell.hardware.value.twins:
        return model.value.hf_id, []
    if model.value.twin is None:
        return "", [Problem(model.where(), f"'{cell.id}' runs the twin of {model.value.name}, which declares none: add twin:")]
    if recipe.value.warm_start is None:
        return "", [Problem(recipe.where(), f"'{cell.id}' runs a twin, and a twin has no published weights: name a warm_start")]
    found = warm_start(cell)
    if found is None:
        make = f"vime sft {recipe.value.sft_recipe}" if recipe.value.sft_recipe else "vime sft"
        message = f"the twin has no warm start '{recipe.value.warm_start}', which recipe {recipe.value.name} asks for: make it with '{make}' and declare it"
        return "", [Problem(model.where("twin", "warm_starts"), message)]
    return matrix.root / "warmstarts" / found.directory, []


def science_hash(cell: str | DeclaredCell, matrix: Matrix | None = None) -> str:
    """SHA-256 of what the cell learns: initial weights, data, task, reward, sampling, algorithm, batch sizes, optimizer, planned steps.

    Seed, platform, layout, placement, transport, load path and the engine's precision are not in it. Raises as `resolve` does.
    """
    matrix = matrix or load()
    return content_hash(science(matrix, matrix.cell(cell) if isinstance(cell, str) else cell))


def science(matrix: Matrix, cell: DeclaredCell) -> dict[str, Any]:
    """What the science hash is taken of, readable: `matrix show` prints it so that two hashes can be told apart."""
    recipe = cell.recipe.value
    composed = compose_cell(matrix, cell)
    if composed.problems:
        raise MatrixError(composed.problems)
    values = matrix.science.project(composed.values, matrix.vime.defaults)
    path = values.get("data.path")
    if path:
        values["data.path"] = data_content(matrix, cell, path)
    result = {"version": SCIENCE_VERSION, "model": initial_weights(matrix, cell), "reward": recipe.reward.model_dump(), "config": values}
    if recipe.judge.metric.startswith("eval/"):  # then the held-out set is part of what the curve means
        given = composed.values.get("eval", {})
        result["eval"] = {key[1]: given.get(key[1], default) for key, default in matrix.vime.defaults.items() if key[0] == "eval"}
    if recipe.config.get("megatron"):
        result["megatron"] = recipe.config["megatron"]
    return result


def data_content(matrix: Matrix, cell: DeclaredCell, path: str) -> dict[str, str]:
    """A data file is its content, wherever it lies; one that the checkout does not hold is what its recipe declares. Raises MatrixError for neither."""
    recipe = cell.recipe
    for dataset in recipe.value.datasets:
        if dataset.file == path:
            return {"source": dataset.source, "sha256": dataset.sha256}
    file = matrix.root.parent / path
    if not file.is_file():
        where = recipe.where("config", "data", "path")
        raise MatrixError([Problem(where, f"{path} is not in the checkout: declare it under datasets (file, source, sha256 or unpinned)")])
    return {"sha256": file_hash(file)}


def initial_weights(matrix: Matrix, cell: DeclaredCell) -> Mapping[str, Any]:
    """What names the weights a run begins from. Models whose twins are identical begin from the same, whatever they are called."""
    found, twin = warm_start(cell), cell.model.value.twin
    if found is None or twin is None:
        return {"hf_id": cell.model.value.hf_id, "revision": cell.model.value.hf_revision}
    tokenizer = matrix.root / "warmstarts" / found.directory / "tokenizer.json"
    return {"config": twin.config, "weights": found.sha256, "tokenizer": file_hash(tokenizer) if tokenizer.is_file() else None}


def labels(matrix: Matrix, cell: DeclaredCell) -> dict[str, Any]:
    """The opaque block that vime copies into the manifest, and by which a run is later known."""
    recipe = cell.recipe.value
    return {
        "cell": str(cell.id),
        "recipe": recipe.name,
        "science_hash": science_hash(cell, matrix),
        "reward": {"id": recipe.reward.id, "range": list(recipe.reward.range)},
        "evidence": recipe.judge.evidence,
        "planned_steps": recipe.judge.planned_steps,
        "model": model_text(matrix, cell),
    }


def model_text(matrix: Matrix, cell: DeclaredCell) -> str:
    """How reports call the model: its name, or `twin, 191 k` after the number of parameters in the warm start."""
    path, _ = model_path(matrix, cell)
    if not isinstance(path, Path):
        return cell.model.value.hf_id
    return f"twin, {_parameters(path)}"


@lru_cache(maxsize=64)
def _parameters(directory: Path) -> str:
    count = sum(_elements(entry.shape) for entry in tensors(directory))
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.0f} {unit}" if count >= 10 * size else f"{count / size:.1f} {unit}"
    return str(count)


def _elements(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def config_hash(config: Mapping[str, Any], matrix: Matrix) -> str:
    """SHA-256 of a resolved configuration; paths inside the checkout count relative to it, so that moving the checkout changes nothing."""
    root = matrix.root.parent
    paths = {name: Path(config["model"][name]) for name in ("path", "torch_dist_path") if config["model"].get(name)}
    relative = {name: str(path.relative_to(root)) if path.is_relative_to(root) else str(path) for name, path in paths.items()}
    return content_hash({**config, "model": {**config["model"], **relative}})


def baseline_directory(cell: DeclaredCell, matrix: Matrix) -> Path:
    """Where the baseline of a cell's science lies (whether or not there is one): one directory for all cells that learn the same."""
    return matrix.root / "baselines" / science_hash(cell, matrix)[:SHORT]
