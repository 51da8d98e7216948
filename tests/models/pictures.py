"""Prompts with pictures for a twin that sees, as a train batch and as Hugging Face takes them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.models import hugging_face
from vime.data.images import Image, ImageProcessor, load_image_processor
from vime.data.sample import Prompt
from vime.training.batch import TrainBatch
from vime.training.images import image_batch


def png(height: int, width: int, seed: int = 0) -> bytes:
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def processor_of(directory: Path) -> ImageProcessor:
    processor = load_image_processor(directory)
    assert processor is not None
    return processor


def prompts_of(processor: ImageProcessor) -> list[Prompt]:
    """One picture, none, two of different sizes, and the first picture again."""
    square, wide, tall = (processor.image(png(*size, seed), "test") for seed, size in enumerate([(32, 32), (32, 48), (64, 32)]))
    rng = np.random.default_rng(7)

    def ids(before: int, pictures: Sequence[Image], after: int) -> list[int]:
        marks = [id_ for picture in pictures for id_ in processor.expanded(processor.mark_ids, [picture], "test")]
        return [1, *rng.integers(3, 40, before).tolist(), *marks, *rng.integers(3, 40, after).tolist()]

    kinds: list[tuple[int, list[Image], int]] = [(2, [square], 6), (4, [], 9), (0, [tall, wide], 3), (1, [square], 2)]
    return [Prompt(number, "", ids(before, pictures, after), None, {}, tuple(pictures)) for number, (before, pictures, after) in enumerate(kinds)]


def batch_of(prompts: Sequence[Prompt], processor: ImageProcessor, **values: Any) -> TrainBatch:
    """Each prompt with two answers of random ids, which are in the loss; the second answer may hold an image token that the model made up."""
    rng = np.random.default_rng(3)
    sequences, masks, owners = [], [], []
    for prompt in prompts:
        for answer in (rng.integers(3, 40, 4).tolist(), [9, processor.token_id, 11]):
            sequences.append([*prompt.ids, *answer])
            masks.append([0] * len(prompt.ids) + [1] * len(answer))
            owners.append(prompt)
    images = image_batch(owners, [len(sequence) for sequence in sequences], processor)
    flat = np.concatenate(masks)
    given = {
        "advantages": (rng.normal(size=len(flat)) * flat).astype(np.float32),
        "engine_logprobs": (rng.normal(-4, 0.3, len(flat)) * flat).astype(np.float32),
    }
    return TrainBatch.of(sequences, masks, images=images, **{**given, **values})


def reference(directory: Path, hf_config: dict[str, Any]) -> Any:
    return hugging_face.auto_class(hf_config).from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa").eval()


def logits(model: Any, prompt: Prompt, processor: ImageProcessor) -> torch.Tensor:
    """float32[len, V]."""
    ids_1L = torch.tensor([prompt.ids])
    seen = {}
    if prompt.images:
        grids = torch.tensor([image.grid for image in prompt.images])
        kinds = (ids_1L == processor.token_id).int()
        seen = {"pixel_values": torch.from_numpy(processor.patches(prompt.images)), "image_grid_thw": grids, "mm_token_type_ids": kinds}
    return model(ids_1L, **seen).logits[0]
