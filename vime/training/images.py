"""The images of a train batch on the wire, where its tokens stand beside them, and what a micro-batch takes of both. No torch: the driver makes it.

Positions (M-RoPE): a text token stands at one position on all three axes (time, height, width). An image's tokens share its time position and count rows
and columns from there; the text after it goes on behind the larger of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vime.data.images import Image, ImageProcessor
    from vime.data.sample import Prompt


@dataclass(frozen=True)
class ImageBatch:
    """Every image of a train batch once, however many samples it stands in.

    patches float32[ΣP, D] of all images end to end; grids int64[I, 3], (time, height, width) in patches; merge: patches a side of one token.
    positions int64[3, ΣL] of the batch's tokens; image int32[ΣL]: which image a token is part of, −1 for text; feature int32[ΣL]: which of that image's
    tokens it is.
    """

    patches: np.ndarray
    grids: np.ndarray
    merge: int
    positions: np.ndarray
    image: np.ndarray
    feature: np.ndarray

    def validate(self, tokens: int) -> None:
        """Raises ValueError when the arrays do not describe `tokens` tokens, or patches and grids differ."""
        if self.positions.shape != (3, tokens) or self.image.shape != (tokens,) or self.feature.shape != (tokens,):
            raise ValueError(
                f"positions {list(self.positions.shape)}, image {list(self.image.shape)} and feature {list(self.feature.shape)} for {tokens} tokens"
            )
        if len(self.patches) != self.patch_counts.sum():
            raise ValueError(f"{len(self.patches)} patches for images of {self.patch_counts.tolist()[:8]}")
        inside = self.image >= 0
        if self.image.max(initial=-1) >= len(self.grids) or (self.feature[inside] >= self.patch_counts[self.image[inside]] // self.merge**2).any():
            raise ValueError("a token is part of an image that is not there")

    @property
    def patch_counts(self) -> np.ndarray:
        return self.grids.prod(axis=1)

    def pick(self, source: np.ndarray, real: np.ndarray) -> Picked | None:
        """What the tokens at `source` of the batch (where `real`) need; None when they are text alone."""
        image = np.where(real, self.image[source], -1)
        tokens = np.nonzero(image >= 0)[0]
        if not len(tokens):
            return None
        used, local = np.unique(image[tokens], return_inverse=True)
        stops, features = np.cumsum(self.patch_counts), self.patch_counts[used] // self.merge**2
        first = np.cumsum(features) - features
        patches = np.concatenate([self.patches[stops[index] - self.patch_counts[index] : stops[index]] for index in used])
        return Picked(patches, self.grids[used], tokens, first[local] + self.feature[source[tokens]])


@dataclass(frozen=True)
class Picked:
    """The images of a micro-batch: see `vime.models.vision.Images`."""

    patches: np.ndarray
    grids: np.ndarray
    tokens: np.ndarray
    features: np.ndarray


def image_batch(prompts: Sequence[Prompt], lengths: Sequence[int], processor: ImageProcessor) -> ImageBatch | None:
    """The images of samples that answer `prompts` and are `lengths` tokens long; each image is cut into patches once. None when there are none."""
    numbers: dict[str, int] = {}
    images: list[Image] = []
    for one in (one for prompt in prompts for one in prompt.images):
        if one.digest not in numbers:
            numbers[one.digest] = len(images)
            images.append(one)
    if not images:
        return None
    laid_out: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    parts = []
    for prompt, length in zip(prompts, lengths, strict=True):
        if id(prompt) not in laid_out:
            laid_out[id(prompt)] = _prompt(prompt, numbers, processor)
        positions, image, feature = laid_out[id(prompt)]
        answer = length - len(prompt.ids)
        rest = positions[:, -1:] + np.arange(answer)
        parts.append((np.concatenate([positions[:, :-1], rest], axis=1), _longer(image, length, -1), _longer(feature, length, 0)))
    positions, image, feature = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
    grids = np.array([one.grid for one in images], np.int64)
    return ImageBatch(processor.patches(images), grids, processor.merge, positions, image, feature)


def _prompt(prompt: Prompt, numbers: dict[str, int], processor: ImageProcessor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of the prompt's tokens and of the one after them, image and feature of each token."""
    image, feature = np.full(len(prompt.ids), -1, np.int32), np.zeros(len(prompt.ids), np.int32)
    where = np.nonzero(np.asarray(prompt.ids) == processor.token_id)[0]
    image[where] = np.repeat([numbers[one.digest] for one in prompt.images], [one.tokens for one in prompt.images])
    feature[where] = np.concatenate([np.arange(one.tokens) for one in prompt.images]) if prompt.images else 0
    return mrope_positions([*prompt.ids, -1], [one.grid for one in prompt.images], processor.token_id, processor.merge), image, feature


def _longer(values: np.ndarray, length: int, filler: int) -> np.ndarray:
    return np.concatenate([values, np.full(length - len(values), filler, values.dtype)])


def mrope_positions(ids: Sequence[int] | np.ndarray, grids: Sequence[Sequence[int]], image_token_id: int, merge: int) -> np.ndarray:
    """int64[3, L] of one sequence: `grids` are the (time, height, width) patches of its images in order, `merge` how many patches a side one token stands
    for.

    Raises ValueError when the runs of image tokens do not fit the images.
    """
    ids = np.asarray(ids, dtype=np.int64)
    out = np.empty((3, len(ids)), dtype=np.int64)
    place, position = 0, 0
    for grid in grids:
        start = place + _first(ids[place:] == image_token_id)
        out[:, place:start] = position + np.arange(start - place)
        position += start - place
        time, height, width = int(grid[0]), int(grid[1]) // merge, int(grid[2]) // merge
        stop = start + time * height * width
        if stop > len(ids) or (ids[start:stop] != image_token_id).any():
            raise ValueError(f"an image of {time} × {height} × {width} tokens does not fit the image tokens from {start} on ({len(ids)} tokens in all)")
        axes = np.meshgrid(np.arange(time), np.arange(height), np.arange(width), indexing="ij")
        out[:, start:stop] = position + np.stack([axis.ravel() for axis in axes])
        position += max(height, width)
        place = stop
    if (ids[place:] == image_token_id).any():
        raise ValueError(f"{int((ids == image_token_id).sum())} image tokens are more than its {len(grids)} images make")
    out[:, place:] = position + np.arange(len(ids) - place)
    return out


def _first(where: np.ndarray) -> int:
    """Index of the first True, the length when there is none."""
    return int(where.argmax()) if where.any() else len(where)
