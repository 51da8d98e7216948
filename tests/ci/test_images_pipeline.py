"""Pipelines of images, comments that start builds, schedules, and the files that Buildkite is pointed at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ci.images import declared_images, images_pipeline
from ci.keys import UPLOADER
from ci.pipeline import finish
from ci.settings import FOLDER, read_settings
from ci.slash import Asked, parse
from ci.validate import check, needs
from matrix.loader import load
from matrix.problem import SelectionError

SETTINGS = read_settings()
MATRIX = load()
PIPELINES = sorted((FOLDER / "pipelines").glob("*.yml"))


def test_every_image_is_built_where_its_host_is_with_its_arguments():
    (part,) = finish(images_pipeline(MATRIX, (), None, "reg/team", SETTINGS), SETTINGS)
    steps = {step["key"]: step for step in part["steps"]}
    assert set(steps) == {f"image:{name}" for name in declared_images(MATRIX)}
    step = steps["image:vime-npu-a3"]
    assert step["agents"] == {"queue": "images-arm"}
    assert step["command"] == ["bash ci/docker/build.sh reg/team/vime-npu-a3 ci/docker/Dockerfile.npu CHIP=a3 SOC_VERSION=ascend910_9391"]


def test_a_night_runs_on_what_was_just_built_also_when_an_image_fails():
    (part,) = finish(images_pipeline(MATRIX, (), "nightly", "reg", SETTINGS), SETTINGS)
    last = part["steps"][-1]
    assert (last["key"], set(needs(last))) == (UPLOADER, {f"image:{name}" for name in declared_images(MATRIX)})
    assert all(item["allow_failure"] for item in last["depends_on"])
    assert last["command"][-1].endswith("--tier nightly --built --upload")
    (alone,) = finish(images_pipeline(MATRIX, (), "nightly", None, SETTINGS), SETTINGS)  # nowhere to push to: what hardware files name by digest runs
    assert [step["key"] for step in alone["steps"]] == [UPLOADER]


@pytest.mark.parametrize(
    ("names", "registry", "message"), [(("vime-npu-a4",), "reg", "no hardware file names an image 'vime-npu-a4'; nearest"), ((), None, "no registry")]
)
def test_images_that_cannot_be_built(names, registry, message):
    with pytest.raises(SelectionError, match=message):
        images_pipeline(MATRIX, names, None, registry, SETTINGS)


@pytest.mark.parametrize(
    ("comment", "want"),
    [
        (
            "/vime run qwen3-4b.a3.non-colocate+tq qwen3-4b.cpu.colocate@learn\nthanks!",
            Asked(cells=("qwen3-4b.a3.non-colocate+tq", "qwen3-4b.cpu.colocate@learn")),
        ),
        ("/vime tier nightly on a2 a3", Asked(tier="nightly", hardware=("a2", "a3"))),
        ("  /vime tier weekly", Asked(tier="weekly")),
        ("/vime images vime-npu-a3", Asked(images=("vime-npu-a3",))),
    ],
)
def test_comments_are_understood(comment, want):
    assert parse(comment) == want


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "hello",
        "/vime",
        "/vime run",
        "/vime run $(reboot)",
        "/vime run --upload",
        "/vime tier nightly with a3",
        "/vime tier a b",
        "/vime delete x",
        "/vime run a;b",
        "please /vime run x.cpu.y",
    ],
)
def test_everything_else_in_a_comment_is_refused_with_the_forms(comment):
    with pytest.raises(SelectionError, match="/vime run CELL"):
        parse(comment)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_the_files_that_buildkite_is_pointed_at_are_pipelines(path):
    check(yaml.safe_load(path.read_text()), set())


def test_schedules_name_pipelines_that_are_there():
    schedules = yaml.safe_load((FOLDER / "schedules.yaml").read_text())["schedules"]
    assert {entry["label"] for entry in schedules} == {"nightly", "weekly"}
    for entry in schedules:
        assert (Path(FOLDER).parent / entry["pipeline"]).is_file()
        assert re.fullmatch(r"(\S+ ){4}\S+", entry["cronline"])
