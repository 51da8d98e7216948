from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from matrix.weights import fingerprint, tensors

WEIGHTS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(4, np.float32), "c": np.zeros((2, 2), np.float16)}


def save(directory: Path, *files: dict[str, np.ndarray], **metadata: str) -> Path:
    directory.mkdir()
    for index, tensors_ in enumerate(files):
        save_file(tensors_, directory / f"model-{index}.safetensors", metadata=metadata or None)
    return directory


def test_the_fingerprint_is_that_of_the_tensors_however_they_are_kept(tmp_path: Path):
    whole = save(tmp_path / "whole", WEIGHTS)
    noted = save(tmp_path / "noted", dict(reversed(WEIGHTS.items())), format="pt")
    split = save(tmp_path / "split", {"c": WEIGHTS["c"]}, {"a": WEIGHTS["a"], "b": WEIGHTS["b"]})
    assert fingerprint(whole) == fingerprint(noted) == fingerprint(split)


@pytest.mark.parametrize(
    "change",
    [
        {"a": np.array([1, 1, 1, 1.0001], np.float32)},
        {"a": np.ones((2, 2), np.float32)},
        {"a": np.ones(4, np.float32).view(np.int32)},
    ],
)
def test_a_value_a_shape_or_a_dtype_changes_it(tmp_path: Path, change: dict[str, np.ndarray]):
    assert fingerprint(save(tmp_path / "one", WEIGHTS)) != fingerprint(save(tmp_path / "other", {**WEIGHTS, **change}))


def test_a_name_changes_it(tmp_path: Path):
    renamed = {("a2" if name == "a" else name): value for name, value in WEIGHTS.items()}
    assert fingerprint(save(tmp_path / "one", WEIGHTS)) != fingerprint(save(tmp_path / "other", renamed))


def test_what_is_no_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="holds no"):
        fingerprint(tmp_path)
    with pytest.raises(ValueError, match="'?a'? in more than one file"):
        tensors(save(tmp_path / "double", {"a": WEIGHTS["a"]}, {"a": WEIGHTS["a"]}))
    cut = save(tmp_path / "cut", WEIGHTS)
    file = cut / "model-0.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match="cut off"):
        fingerprint(cut)
    file.write_bytes(b"\xff" * 16)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        fingerprint(cut)
