"""Tasks whose prompts are pictures, drawn on the spot and seeded: nothing is fetched, and every machine draws the same bytes."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vime.data.images import MARK
from vime.data.sample import RawPrompt
from vime.data.tasks import register_task
from vime.errors import UserError

COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220), "yellow": (235, 205, 50), "purple": (150, 60, 180), "white": (245, 245, 245)}
SHAPES = ("square", "circle", "triangle", "cross")
BACKGROUND = (20, 20, 20)
NOISE = 12  # standard deviation of each pixel's brightness: no two pictures are alike


@register_task("image_colours")
def image_colours(seed: int, args: Mapping[str, Any]) -> Iterator[RawPrompt]:
    """A grid of coloured shapes; the answer is the colours' first letters, row by row.

    Arguments: `cells`, shapes a side (2); `cell`, pixels a side of each (16); `colours`, how many there are (4).
    """
    cells, cell, colours = _arguments("image_colours", args, cells=2, cell=16, colours=4)
    names = list(COLOURS)[:colours]
    for number in itertools.count():
        rng = random.Random(f"image_colours/{seed}/{number}")
        chosen = [rng.choice(names) for _ in range(cells * cells)]
        picture = _canvas(cells, cell, rng)
        for place, name in enumerate(chosen):
            _draw(picture, place, cells, cell, rng.choice(SHAPES), COLOURS[name])
        yield RawPrompt(f"{MARK}colours=", "".join(name[0] for name in chosen), {}, f"task image_colours, item {number}", (_png(picture),))


@register_task("image_count")
def image_count(seed: int, args: Mapping[str, Any]) -> Iterator[RawPrompt]:
    """A grid of shapes, some of the colour that is asked for; the answer is how many.

    Arguments: as of image_colours; some cells stay empty.
    """
    cells, cell, colours = _arguments("image_count", args, cells=3, cell=16, colours=3)
    names = list(COLOURS)[:colours]
    for number in itertools.count():
        rng = random.Random(f"image_count/{seed}/{number}")
        wanted, count = rng.choice(names), rng.randrange(min(cells * cells, 9) + 1)
        places = rng.sample(range(cells * cells), cells * cells)
        picture = _canvas(cells, cell, rng)
        for order, place in enumerate(places):
            others = [name for name in names if name != wanted] if rng.random() < 0.5 else []
            name = wanted if order < count else rng.choice(others) if others else None
            if name is not None:
                _draw(picture, place, cells, cell, rng.choice(SHAPES), COLOURS[name])
        yield RawPrompt(f"{MARK}{wanted}=", str(count), {"colour": wanted}, f"task image_count, item {number}", (_png(picture),))


def _arguments(task: str, args: Mapping[str, Any], **defaults: int) -> tuple[int, ...]:
    for key, value in args.items():
        if key not in defaults:
            raise UserError(f"data.task_args.{key}: {task} has no such argument; it takes {', '.join(defaults)}")
        if not isinstance(value, int) or value < 1:
            raise UserError(f"data.task_args.{key}: {value!r} is no whole number above 0")
    values = {**defaults, **args}
    if values["colours"] > len(COLOURS):
        raise UserError(f"data.task_args.colours: {values['colours']} of {len(COLOURS)} colours: {', '.join(COLOURS)}")
    return tuple(values[key] for key in defaults)


def _canvas(cells: int, cell: int, rng: random.Random) -> np.ndarray:
    """uint8[H, W, 3]: the background with noise drawn from `rng`."""
    side = cells * cell
    noise = np.random.default_rng(rng.getrandbits(64)).normal(0, NOISE, (side, side, 1))
    return np.clip(np.array(BACKGROUND) + noise, 0, 255).astype(np.uint8)


def _draw(picture: np.ndarray, place: int, cells: int, cell: int, shape: str, colour: tuple[int, int, int]) -> None:
    """One shape in its cell, a pixel of background around it."""
    row, column = divmod(place, cells)
    y, x = np.mgrid[0:cell, 0:cell] + 0.5
    middle, reach = cell / 2, cell / 2 - 1
    dy, dx = y - middle, x - middle
    inside = {
        "square": (abs(dx) <= reach * 0.85) & (abs(dy) <= reach * 0.85),
        "circle": dx**2 + dy**2 <= reach**2,
        "triangle": (abs(dx) <= (dy + reach) / 2) & (dy <= reach),
        "cross": ((abs(dx) <= reach / 3) | (abs(dy) <= reach / 3)) & (abs(dx) <= reach) & (abs(dy) <= reach),
    }[shape]
    picture[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell][inside] = colour


def _png(picture: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()
