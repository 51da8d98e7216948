"""Prompts with pictures: read from files and tasks, expanded to the tokens they take, cut into patches once for each batch."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.families import BY_NAME
from tests.models.pictures import png
from vime.config.tree import DataConfig, EvalConfig
from vime.data import ImageProcessor, Prompt, load_held_out, load_image_processor, load_prompts, load_tokenizer
from vime.data.fingerprint import fingerprint
from vime.data.images import Image, collapsed
from vime.data.tasks import task_stream
from vime.errors import RunError, UserError
from vime.models.twins import make_twin
from vime.rollout.pictures import check_expanded, engine_prompt
from vime.training.images import image_batch


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_twin(BY_NAME["qwen3-vl"].config, tmp_path_factory.mktemp("seeing") / "twin")


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return load_tokenizer(model)


@pytest.fixture(scope="module")
def processor(model: Path) -> ImageProcessor:
    processor = load_image_processor(model)
    assert processor is not None
    return processor


def jsonl(directory: Path, *rows: dict[str, Any]) -> DataConfig:
    file = directory / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DataConfig(path=str(file), images_field="images")


def test_paths_bytes_and_lists(tmp_path, tokenizer, processor):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(png(32, 32))
    encoded = base64.b64encode(png(32, 48)).decode()
    data = jsonl(
        tmp_path,
        {"prompt": "<image>red=", "label": "1", "images": "pictures/a.png"},
        {"prompt": "<image> and <image>", "label": "2", "images": [{"path": "pictures/a.png"}, {"bytes": encoded, "path": None}]},
        {"prompt": "red=", "label": "3", "images": None},
        {"prompt": "blue=", "label": "3", "images": []},
    )
    one, two, none, empty = load_prompts(data, tokenizer, 64, images=processor)
    assert [image.grid for image in two.images] == [(1, 4, 4), (1, 4, 6)] and not none.images and not empty.images
    assert one.images[0].digest == two.images[0].digest
    start, token, end = processor.mark_ids
    assert one.ids == [1, start, *[token] * 4, end, *tokenizer("red=", add_special_tokens=False)["input_ids"]]
    assert two.ids.count(token) == 4 + 6
    assert none.ids == tokenizer("red=")["input_ids"]


def test_parquet_holds_bytes_or_structs(tmp_path, tokenizer, processor):
    import pyarrow as pa
    import pyarrow.parquet as pq

    structs = [[{"bytes": png(32, 32), "path": None}], []]
    pq.write_table(pa.table({"prompt": ["<image>a=", "a="], "label": ["1", "2"], "images": structs}), tmp_path / "s.parquet")
    pq.write_table(pa.table({"prompt": ["<image>a="], "label": ["1"], "images": [png(32, 32)]}), tmp_path / "b.parquet")
    first, second = load_prompts(DataConfig(path=str(tmp_path / "s.parquet"), images_field="images"), tokenizer, 64, images=processor)
    (alone,) = load_prompts(DataConfig(path=str(tmp_path / "b.parquet"), images_field="images"), tokenizer, 64, images=processor)
    assert first.images[0].digest == alone.images[0].digest and not second.images


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "<image>a=", "images": "gone.png"}, r"prompts.jsonl:2: image .*gone.png cannot be read: No such file"),
        (
            {"prompt": "<image>a=", "images": {"bytes": base64.b64encode(b"no picture").decode()}},
            r"prompts.jsonl:2: image 10 bytes cannot be read: cannot identify",
        ),
        ({"prompt": "<image>a=", "images": {"bytes": "!!"}}, "prompts.jsonl:2: field 'images' holds bytes that are not base64"),
        ({"prompt": "<image>a=", "images": [7]}, r"prompts.jsonl:2: field 'images' holds 7; an image is a path"),
        ({"prompt": "<image>a=", "images": [{"url": "x"}]}, "prompts.jsonl:2: field 'images' holds {'url': 'x'}"),
        ({"prompt": "a=", "images": "ok.png"}, "prompts.jsonl:2: 0 image marks in the prompt, 1 images: write <image> once for each"),
        ({"prompt": "<image><image>a=", "images": "ok.png"}, "prompts.jsonl:2: 2 image marks in the prompt, 1 images"),
        ({"prompt": "<image>a=", "images": []}, "prompts.jsonl:2: 1 image marks in the prompt, 0 images"),
        ({"prompt": "<image>a=", "images": "thin.png"}, r"prompts.jsonl:2: an image of 1 × 400 pixels: absolute aspect ratio"),
    ],
)
def test_a_defect_is_named_with_its_line(row, message, tmp_path, tokenizer, processor):
    (tmp_path / "ok.png").write_bytes(png(32, 32))
    (tmp_path / "thin.png").write_bytes(png(1, 400))
    data = jsonl(tmp_path, {"prompt": "a=", "label": "1", "images": None}, {"label": "1", **row})
    with pytest.raises(UserError, match=message):
        load_prompts(data, tokenizer, 64, images=processor)


def test_images_for_a_model_without_a_tower_are_refused(tmp_path, tokenizer):
    (tmp_path / "ok.png").write_bytes(png(32, 32))
    data = jsonl(tmp_path, {"prompt": "<image>a=", "label": "1", "images": "ok.png"})
    with pytest.raises(UserError, match=r"prompts.jsonl:1: the prompt has 1 images, but the model has no vision tower"):
        load_prompts(data, tokenizer, 64)


def test_a_file_that_changes_during_the_run_stops_it(tmp_path, tokenizer, processor):
    (tmp_path / "a.png").write_bytes(png(32, 32))
    (prompt,) = load_prompts(jsonl(tmp_path, {"prompt": "<image>a=", "label": "1", "images": "a.png"}), tokenizer, 64, images=processor)
    (tmp_path / "a.png").write_bytes(png(32, 32, seed=5))
    with pytest.raises(RunError, match="changed since the prompts were loaded"):
        prompt.images[0].picture()


def test_the_pool_is_told_apart_by_its_pictures(tokenizer, processor):
    data = DataConfig(task="image_colours", size=8)
    first, again = (load_prompts(data, tokenizer, 64, images=processor) for _ in range(2))
    assert fingerprint(first) == fingerprint(again)
    other = [dataclasses.replace(prompt, images=first[0].images) for prompt in first]
    assert fingerprint(other) != fingerprint(first)
    held_out = load_held_out(data, EvalConfig(size=8), tokenizer, 64, first, images=processor)  # one text, other pictures
    assert {prompt.text for prompt in held_out} == {first[0].text}
    assert not {prompt.key for prompt in held_out} & {prompt.key for prompt in first}


@pytest.mark.parametrize("task", ["image_colours", "image_count"])
def test_tasks_draw_the_same_pictures_in_every_process(task):
    stream = task_stream(task, 3, {})
    first = [next(stream) for _ in range(3)]
    again = task_stream(task, 3, {})
    assert [(raw.prompt, raw.label, raw.images) for raw in first] == [(raw.prompt, raw.label, raw.images) for raw in (next(again) for _ in range(3))]
    assert len({raw.images for raw in first}) == 3
    assert next(task_stream(task, 4, {})).images != first[0].images


def test_the_answer_is_what_the_picture_shows(processor):
    from vime.data.image_tasks import COLOURS

    stream = task_stream("image_colours", 0, {"cells": 2, "cell": 16, "colours": 6})
    for raw in (next(stream) for _ in range(20)):
        pixels = np.asarray(processor.image(raw.images[0], "test").picture())
        seen = ""
        for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
            middle = tuple(int(value) for value in pixels[row * 16 + 8, column * 16 + 8])
            seen += next(name[0] for name, colour in COLOURS.items() if colour == middle)
        assert seen == raw.label


@pytest.mark.parametrize(
    ("args", "message"), [({"cels": 2}, "no such argument; it takes cells"), ({"cells": 0}, "no whole number"), ({"colours": 7}, "7 of 6 colours")]
)
def test_a_wrong_argument_of_a_task_is_refused(args, message):
    with pytest.raises(UserError, match=message):
        next(task_stream("image_colours", 0, args))


# ---- what becomes of them --------------------------------------------------------------------------------------------------------------------------


def test_an_image_is_cut_once_however_many_samples_it_stands_in(processor, monkeypatch):
    cut: list[int] = []
    original = ImageProcessor.patches
    monkeypatch.setattr(ImageProcessor, "patches", lambda self, images: cut.append(len(images)) or original(self, images))
    image = processor.image(png(32, 32), "test")
    prompt = Prompt(0, "", processor.expanded([1, *processor.mark_ids, 5], [image], "test"), "x", {}, (image,))
    batch = image_batch([prompt] * 16, [len(prompt.ids) + 3] * 16, processor)
    assert cut == [1]
    assert batch is not None and batch.grids.tolist() == [[1, 4, 4]] and batch.patches.shape == (16, 3 * 2 * 64)
    batch.validate(16 * (len(prompt.ids) + 3))


def test_an_image_token_in_an_answer_is_text(processor):
    image = processor.image(png(32, 32), "test")
    ids = processor.expanded([1, *processor.mark_ids], [image], "test")
    batch = image_batch([Prompt(0, "", ids, "x", {}, (image,))], [len(ids) + 2], processor)
    assert batch is not None
    assert (batch.image[: len(ids)] >= 0).sum() == 4 and (batch.image[len(ids) :] == -1).all()
    assert batch.positions[:, -1].tolist() == [batch.positions[0, -2] + 1] * 3


sizes = st.lists(st.integers(1, 5), max_size=3)


@given(sizes, st.lists(st.integers(0, 9), min_size=4, max_size=4))
@settings(max_examples=100, deadline=None)
def test_the_engine_is_given_one_token_an_image(tokens, text):
    images = [Image(b"", str(number), (1, 2, 2 * count), count) for number, count in enumerate(tokens)]
    short = [token for number in range(len(images)) for token in (text[number], 50)] + [text[-1]]
    places = iter(images)
    full = [token for item in short for token in ([item] * (next(places).tokens if item == 50 else 1))]
    assert collapsed(full, images, 50) == short


def test_pictures_are_opened_once_for_a_call(processor, monkeypatch):
    opened: list[str] = []
    original = Image.picture
    monkeypatch.setattr(Image, "picture", lambda self: opened.append(self.digest) or original(self))
    image = processor.image(png(32, 32), "test")
    ids, shared = processor.expanded([1, *processor.mark_ids], [image], "test"), {}
    prompts = [engine_prompt(ids, (image,), processor.token_id, shared) for _ in range(5)]
    assert len(opened) == 1
    assert all(prompt["prompt_token_ids"] == [1, *processor.mark_ids] and prompt["multi_modal_uuids"] == {"image": [image.digest]} for prompt in prompts)
    assert engine_prompt([1, 2], (), None, shared) == {"prompt_token_ids": [1, 2]}
    with pytest.raises(RunError, match="no vision tower"):
        engine_prompt(ids, (image,), None, shared)


def test_ids_that_differ_between_engine_and_trainer_stop_the_run():
    check_expanded("sample 0-0-0", [1, 50, 50, 2], (1, 50, 50, 2))
    with pytest.raises(RunError, match=r"sample 0-0-0: the engine made 5 ids of a prompt with images, the trainer 4; they differ from position 3"):
        check_expanded("sample 0-0-0", [1, 50, 50, 2], [1, 50, 50, 50, 2])
