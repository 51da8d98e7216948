"""What a cell still lacks before anybody can run it. Such a cell is declared, shown, and never run by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from matrix.declarations import Model
from matrix.loader import DeclaredCell, Matrix
from matrix.resolver import model_path


def lacking(matrix: Matrix, cell: DeclaredCell) -> list[str]:
    """Why the cell cannot be run from this checkout on any machine; empty when nothing is missing."""
    return [*lacking_settings(matrix, cell), *(problem.message for problem in model_path(matrix, cell)[1])]


def lacking_settings(matrix: Matrix, cell: DeclaredCell) -> Iterator[str]:
    """What vime itself lacks for the settings of the cell's mode."""
    for name in cell.id.settings:
        awaits = matrix.modes.settings[name].awaits
        if awaits:
            yield f"{name}: {awaits}"


def lacking_files(matrix: Matrix, cell: DeclaredCell) -> list[str]:
    """Weights and data files that a run of the cell reads and this machine's checkout does not hold, each with where it comes from."""
    root = matrix.root.parent
    weights = [] if cell.hardware.value.twins or cell.framework else _lacking_weights(root, cell.model.value)
    missing = [dataset for dataset in cell.recipe.value.datasets if not (root / dataset.file).is_file()]
    return weights + [f"{dataset.file} is not here: make it from the data set {dataset.source} ({dataset.sha256})" for dataset in missing]


def _lacking_weights(root: Path, model: Model) -> list[str]:
    """vime loads a directory, and downloads nothing by itself."""
    if (root / model.hf_id / "config.json").is_file():
        return []
    revision = "" if model.hf_revision == "unpinned" else f" --revision {model.hf_revision}"
    other = f", or 'modelscope download --model {model.modelscope_id} --local_dir {model.hf_id}'" if model.modelscope_id else ""
    return [f"{model.hf_id}/ is not here: get it with 'hf download {model.hf_id}{revision} --local-dir {model.hf_id}'{other}"]


def caveats(matrix: Matrix, cell: DeclaredCell) -> list[str]:
    """What keeps the cell's result from counting, or CI from running it, though it may run: said beside it in plans."""
    hardware, model = cell.hardware.value, cell.model.value
    found = [f"unvalidated: {cell.unvalidated}"] if cell.unvalidated else []
    if hardware.image and hardware.image.digest == "unbuilt":
        found.append(f"image {hardware.image.name} is unbuilt: no CI step can run")
    if not hardware.twins:
        if model.hf_revision == "unpinned":
            found.append(f"weights of {model.hf_id} are unpinned: write the commit under hf_revision")
        found += [f"data of {dataset.source} is unpinned" for dataset in cell.recipe.value.datasets if dataset.sha256 == "unpinned"]
    found += [f"{package} is unpinned" for package, version in hardware.versions.items() if version == "unpinned"]
    return found
