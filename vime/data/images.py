"""Images of prompts: where their bytes are, how many tokens they take, and the patches the vision tower reads.

A prompt marks each image by `<image>`. The mark becomes the model's own (start, one image token, end), and the one image token as many as the image makes:
the same ids that the engine makes of the same image. Patches are cut when a batch needs them, once for each image in it.
"""

from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from vime.errors import RunError, UserError

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MARK = "<image>"


@dataclass(frozen=True, slots=True)
class Image:
    """One image. `source`: its file, or the bytes of one (PNG, JPEG, …); `digest` of the file's bytes; `grid`: (time, height, width) in patches; `tokens`:
    how many it takes in the prompt."""

    source: str | bytes = field(repr=False)
    digest: str
    grid: tuple[int, int, int]
    tokens: int

    def picture(self) -> Picture:
        """As RGB. Raises RunError when the file is gone or has changed."""
        return opened(read_bytes(self.source, self.digest))


def read_bytes(source: str | bytes, digest: str) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        data = Path(source).read_bytes()
    except OSError as error:
        raise RunError("data", f"image {source} cannot be read any more: {error.strerror}") from None
    if xxhash.xxh3_128_hexdigest(data) != digest:
        raise RunError("data", f"image {source} changed since the prompts were loaded")
    return data


def opened(data: bytes) -> Picture:
    from PIL import Image as Pillow

    with Pillow.open(io.BytesIO(data)) as picture:
        return picture.convert("RGB")


class ImageProcessor:
    """The image half of a model's processor: Hugging Face's, from the model directory, and the ids that config.json gives to images."""

    def __init__(self, path: str | Path, hf_config: Mapping[str, Any]):
        self.path = Path(path)
        self.token_id: int = _need(self.path, hf_config, "image_token_id")
        self.mark_ids = [_need(self.path, hf_config, "vision_start_token_id"), self.token_id, _need(self.path, hf_config, "vision_end_token_id")]
        self.merge: int = _need(self.path, hf_config["vision_config"], "spatial_merge_size")

    @functools.cached_property
    def processor(self) -> Any:
        from transformers import AutoImageProcessor

        try:
            return AutoImageProcessor.from_pretrained(self.path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise UserError(f"model.path: no image processor in {self.path} (preprocessor_config.json): {str(error).splitlines()[0]}") from None

    def image(self, source: str | bytes, place: str) -> Image:
        """An image as a prompt holds it. Raises UserError naming `place` when it cannot be read."""
        try:
            data = source if isinstance(source, bytes) else Path(source).read_bytes()
            height, width = opened(data).size[::-1]
        except OSError as error:  # Pillow's own errors are of this kind
            shown = f"{len(source)} bytes" if isinstance(source, bytes) else source
            raise UserError(f"{place}: image {shown} cannot be read: {error.strerror or error}; give a PNG, JPEG or other image file") from None
        grid = self.grid(height, width, place)
        return Image(source, xxhash.xxh3_128_hexdigest(data), grid, int(np.prod(grid)) // self.merge**2)

    def grid(self, height: int, width: int, place: str) -> tuple[int, int, int]:
        """(time, height, width) in patches of an image of so many pixels, as the processor will resize it."""
        settings = self.processor
        size, side = settings.size, settings.patch_size
        resize = getattr(sys.modules[type(settings).__module__], "smart_resize", None)  # Qwen's rule, beside each of their processors
        if resize is None:
            raise UserError(f"{self.path / 'preprocessor_config.json'}: {type(settings).__name__} is not supported: only Qwen's image processors are")
        try:
            resized = resize(height, width, side * settings.merge_size, size["shortest_edge"], size["longest_edge"])
        except ValueError as error:
            raise UserError(f"{place}: an image of {height} × {width} pixels: {error}") from None
        return 1, resized[0] // side, resized[1] // side

    def patches(self, images: Sequence[Image]) -> np.ndarray:
        """float32[ΣP, channels · time · side²] of the images in turn. Raises RunError when the processor cuts one otherwise than foreseen."""
        out = self.processor(images=[image.picture() for image in images], return_tensors="np")
        found = [tuple(map(int, grid)) for grid in out["image_grid_thw"]]
        for image, grid in zip(images, found, strict=True):
            if grid != image.grid:
                raise RunError("data", f"an image was to have {image.grid} patches, the processor made {grid}: its preprocessor_config.json is of another kind")
        return np.asarray(out["pixel_values"], np.float32)

    # ---- text ------------------------------------------------------------------------------------------------------------------------------------------

    def marked(self, text: str, tokenizer: Any) -> str:
        """`text` with the model's own marks in the place of `<image>`."""
        return text.replace(MARK, "".join(tokenizer.convert_ids_to_tokens(self.mark_ids)))

    def expanded(self, ids: Sequence[int], images: Sequence[Image], place: str) -> list[int]:
        """Each image token as often as its image takes. Raises UserError when there are more or fewer than images."""
        found = sum(token == self.token_id for token in ids)
        if found != len(images):
            raise UserError(f"{place}: {found} image marks in the prompt, {len(images)} images: write {MARK} once for each, where it belongs")
        sizes = iter(images)
        return [token for ids_ in ([t] * (next(sizes).tokens if t == self.token_id else 1) for t in ids) for token in ids_]


def collapsed(ids: Sequence[int], images: Sequence[Image], token_id: int) -> list[int]:
    """The ids with one token an image: what an engine is given, which expands them itself."""
    out, place, sizes = [], 0, iter(images)
    while place < len(ids):
        out.append(ids[place])
        image = next(sizes, None) if ids[place] == token_id else None
        place += 1 if image is None else image.tokens
    return out


def load_image_processor(path: str | Path) -> ImageProcessor | None:
    """Of a model directory; None when the model has no vision tower."""
    file = Path(path) / "config.json"
    hf_config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return ImageProcessor(path, hf_config) if hf_config.get("vision_config") else None


def _need(path: Path, values: Mapping[str, Any], key: str) -> int:
    if not isinstance(values.get(key), int):
        raise UserError(f"{path / 'config.json'}: {key} is missing: a model with images needs it")
    return int(values[key])
