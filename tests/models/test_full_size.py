"""Full-size models on the layouts of the mission's cells: Megatron's own modules without memory (meta device), one rank after the other."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from tests.models.families import architecture
from tests.models.simulated import simulated, world_size
from vime.models.base import local_weights

SP = {"sequence_parallel": True}
CELLS = [
    ("qwen3-4b", {"tensor": 4, **SP}),
    ("qwen3-32b", {"tensor": 8, **SP}),
    pytest.param("qwen3-30b-a3b", {"tensor": 4, "data": 2, "expert": 8, **SP}, marks=pytest.mark.slow),
    ("glm-4.7-flash", {"tensor": 4, "data": 2, "expert": 8, **SP}),
    pytest.param("llama-3", {"tensor": 4, "pipeline": 2, **SP}, marks=pytest.mark.slow),
    pytest.param("glm-4.7", {"tensor": 8, "pipeline": 4, "data": 2, "expert": 16, **SP}, marks=pytest.mark.slow),
    pytest.param("minimax-m2.5", {"tensor": 8, "pipeline": 2, "data": 4, "expert": 32, **SP}, marks=pytest.mark.slow),
    pytest.param("moonlight-16b-a3b", {"tensor": 2, "data": 4, "expert": 4, "expert_tensor": 2, **SP}, marks=pytest.mark.slow),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "parallel"), CELLS)
def test_every_element_has_one_owner(name, parallel):
    config = architecture(name)
    mtp = bool(config.get("num_nextn_predict_layers"))
    owned: dict[str, list[tuple[tuple[int, int], ...]]] = {}
    for number in range(world_size(parallel)):
        with torch.device("meta"), simulated(config, parallel, number, mtp=mtp, device="meta") as rank:
            for local, weight in local_weights(rank.model):
                pieces = rank.table.pieces(local, rank.layout)
                held = sum(math.prod(piece.shape) for piece in pieces if not piece.alias)
                assert held == weight.numel() or ("embeddings" in local or "output_layer" in local), f"{local} {list(weight.shape)}: {held} elements named"
                for piece in pieces:
                    if not piece.copy and piece.owner_rank(rank.layout) == number:
                        owned.setdefault(piece.hf_name, []).append(tuple((part.start, part.stop) for part in piece.hf_slice))
            table = rank.table
    assert owned.keys() == table.shapes.keys()
    for tensor, boxes in owned.items():
        check_cover(tensor, table.shapes[tensor], boxes)


def check_cover(name: str, shape: tuple[int, ...], boxes: list[tuple[tuple[int, int], ...]]) -> None:
    """The boxes are disjoint along one axis and fill the tensor."""
    assert sum(math.prod(stop - start for start, stop in box) for box in boxes) == math.prod(shape), f"{name}: {boxes}"
    assert len(set(boxes)) == len(boxes), f"{name}: a slice has two owners"
    for axis, size in enumerate(shape):
        cuts: Any = sorted({box[axis] for box in boxes})
        assert cuts[0][0] == 0 and cuts[-1][1] == size and all(one[1] == other[0] for one, other in itertools.pairwise(cuts)), f"{name}: {cuts}"
