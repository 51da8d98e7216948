"""Positions and angles of text with images, against Hugging Face's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.models.mrope import InterleavedRotary
from vime.training.images import mrope_positions

IMAGE = 7


def hugging_face(ids: list[int], grids: list[tuple[int, int, int]], merge: int) -> np.ndarray:
    from types import SimpleNamespace

    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    model = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=merge)))
    model.get_vision_position_ids = lambda *args, **kwargs: Qwen3VLModel.get_vision_position_ids(model, *args, **kwargs)  # type: ignore[arg-type]
    ids_1L = torch.tensor([ids])
    grid = torch.tensor(grids) if grids else None
    positions, _ = Qwen3VLModel.get_rope_index(model, ids_1L, (ids_1L == IMAGE).int(), image_grid_thw=grid)  # type: ignore[arg-type]
    return positions[:, 0].numpy()


images = st.tuples(st.just(1), st.integers(1, 4), st.integers(1, 4))


@given(st.lists(st.tuples(st.integers(1, 4), images), max_size=3), st.integers(0, 4), st.sampled_from([1, 2]))
@settings(max_examples=60, deadline=None)
def test_positions_are_hugging_faces(parts, tail, merge):
    ids: list[int] = []
    for text, (time, height, width) in parts:
        ids += [1] * text + [IMAGE] * (time * height * width)
    ids += [2] * (tail or (not ids))
    grids = [(time, height * merge, width * merge) for _, (time, height, width) in parts]
    np.testing.assert_array_equal(mrope_positions(ids, grids, IMAGE, merge), hugging_face(ids, grids, merge))


@pytest.mark.parametrize(
    ("ids", "grids", "message"),
    [
        ([1, 7, 7], [(1, 2, 2)], "does not fit the image tokens from 1"),
        ([1, 7, 7, 7, 7, 7], [(1, 2, 2)], "more than its 1 images"),
        ([1, 2, 3], [(1, 2, 2)], "does not fit"),
        ([1, 7, 3], [], "more than its 0 images"),
    ],
)
def test_tokens_that_do_not_fit_the_images_are_refused(ids, grids, message):
    with pytest.raises(ValueError, match=message):
        mrope_positions(ids, grids, IMAGE, 1)


@pytest.mark.parametrize("percent", [1.0, 0.25])
def test_angles_are_hugging_faces(percent):
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

    sections = [3, 3, 2] if percent == 1 else [1, 1, 0]
    config = Qwen3_5TextConfig(
        head_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": percent, "mrope_section": sections}
    )
    positions = torch.randint(0, 50, (3, 1, 9), generator=torch.Generator().manual_seed(0))
    cos, sin = Qwen3_5TextRotaryEmbedding(config)(torch.zeros(1), positions)
    angles = InterleavedRotary(16, 5000.0, sections, percent)(positions)[:, 0, 0]
    torch.testing.assert_close(angles.cos(), cos[0])
    torch.testing.assert_close(angles.sin(), sin[0])
