"""Images of a train batch: every token of a micro-batch gets the feature that it has in the batch, whichever samples are picked."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.data.images import Image
from vime.data.sample import Prompt
from vime.training.batch import TrainBatch, pack
from vime.training.images import ImageBatch, image_batch

TOKEN, MERGE = 50, 2


class Processor:
    """The patches of an image are its number."""

    token_id, merge = TOKEN, MERGE

    def patches(self, images: list[Image]) -> np.ndarray:
        return np.concatenate([np.full((int(np.prod(image.grid)), 3), int(image.digest), np.float32) for image in images])


def image(number: int) -> Image:
    height, width = 1 + number % 3, 1 + number // 3
    return Image(b"", str(number), (1, MERGE * height, MERGE * width), height * width)


def prompt(numbers: list[int], text: int) -> Prompt:
    images = tuple(map(image, numbers))
    ids = [1] * text
    for one in images:
        ids += [7, *[TOKEN] * one.tokens, 8]
    return Prompt(0, "", [*ids, 2], None, {}, images)


samples = st.lists(st.tuples(st.lists(st.integers(0, 7), max_size=3), st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=8)


@given(samples, st.data())
@settings(max_examples=80, deadline=None)
def test_every_token_gets_its_feature(drawn, data):
    prompts = [prompt(numbers, text) for numbers, text, _ in drawn]
    sequences = [[*one.ids, *[9] * (answer - 1), TOKEN] for one, (_, _, answer) in zip(prompts, drawn, strict=True)]
    images = image_batch(prompts, [len(sequence) for sequence in sequences], Processor())  # type: ignore[arg-type]
    batch = TrainBatch.of(sequences, [[0] + [1] * (len(sequence) - 1) for sequence in sequences], images=images)
    batch.validate()
    chosen = data.draw(st.lists(st.sampled_from(range(len(prompts))), min_size=1, unique=True))
    micro = pack(batch, chosen, torch.device("cpu"), multiple=data.draw(st.sampled_from([1, 2, 4])))
    wanted = [(number, feature) for index in chosen for number in drawn[index][0] for feature in range(image(number).tokens)]
    if not wanted:
        assert micro.images is None
        return
    assert micro.images is not None
    used = sorted({number for number, _ in wanted}, key=lambda number: [one.digest for one in order(prompts)].index(str(number)))
    first = np.cumsum([0, *(image(number).tokens for number in used)])
    assert micro.images.features_N.tolist() == [int(first[used.index(number)]) + feature for number, feature in wanted]
    assert micro.images.grids.tolist() == [list(image(number).grid) for number in used]
    assert micro.images.patches[:, 0].tolist() == [float(number) for number in used for _ in range(int(np.prod(image(number).grid)))]
    packed = [TOKEN if token == TOKEN else 0 for index in chosen for token in [*prompts[index].ids, *[0] * drawn[index][2]]]
    assert micro.images.tokens_N.tolist() == [place for place, token in enumerate(packed) if token]


def order(prompts: list[Prompt]) -> list[Image]:
    """As they first occur."""
    return list(dict.fromkeys(one for each in prompts for one in each.images))


def test_positions_begin_anew_at_each_sample_and_go_on_in_the_answer():
    one = prompt([1], 2)  # two text tokens, a mark, an image of 2 × 1 tokens, a mark, one more
    images = image_batch([one, one], [len(one.ids) + 2, len(one.ids)], Processor())  # type: ignore[arg-type]
    assert images is not None
    single = np.array([[0, 1, 2, 3, 3, 5, 6], [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 3, 5, 6]])
    np.testing.assert_array_equal(images.positions, np.concatenate([single, [[7, 8]] * 3, single], axis=1))


def test_no_pictures_no_images():
    assert image_batch([prompt([], 3)], [5], Processor()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": np.zeros((3, 4), np.int64)}, r"positions \[3, 4\]"),
        ({"image": np.full(7, 3, np.int32)}, "an image that is not there"),
        ({"feature": np.full(7, 9, np.int32)}, "an image that is not there"),
        ({"patches": np.zeros((3, 3), np.float32)}, "3 patches for images of"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    one = prompt([1], 2)
    images = image_batch([one], [len(one.ids)], Processor())  # type: ignore[arg-type]
    assert isinstance(images, ImageBatch)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(images, **changes).validate(len(one.ids))
