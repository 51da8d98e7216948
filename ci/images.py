"""The pipeline that builds images, pushes them, and tells their digests; a tier's pipeline can follow on what was just built."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ci.pipeline import Pipeline, as_data
from ci.settings import Settings
from matrix.problem import SelectionError, nearest

if TYPE_CHECKING:
    from matrix.hardware_types import Hardware
    from matrix.loader import Matrix

SCRIPT = "ci/docker/build.sh"


def images_pipeline(matrix: Matrix, names: tuple[str, ...], tier: str | None, registry: str | None, settings: Settings) -> Pipeline:
    """Raises SelectionError for a name that no hardware file has, and where nobody says where images are pushed; a tier then runs on what hardware files
    name by digest."""
    from buildkite_sdk import CommandStep

    from ci.keys import UPLOADER
    from ci.steps import AGENT_LOST, PASS_ON, retries

    known = declared_images(matrix)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SelectionError(f"no hardware file names an image '{unknown[0]}'{nearest(unknown[0], known)}")
    place = registry or settings.registry
    if not place and not tier:
        raise SelectionError("no registry: an image that is not pushed has no digest. Name one with --registry or in ci/settings.yaml")
    steps: list[Any] = [_build(known[name], place, settings) for name in (names or sorted(known))] if place else []
    if tier:
        settings.tier(tier)
        matrix.select(tier=tier)
        platform = settings.platforms["cpu"]
        steps.append(
            CommandStep(
                key=UPLOADER,
                label="upload the pipeline",
                command=[*platform.prepare, f"{platform.python} -m ci pipeline --tier {shlex.quote(tier)} --built --upload"],
                agents={"queue": settings.queue},
                depends_on=[{"step": step.key, **PASS_ON} for step in steps],
                timeout_in_minutes=settings.margin_minutes,
                retry=retries(settings, AGENT_LOST),
            )
        )
    return as_data(steps)


def declared_images(matrix: Matrix) -> dict[str, Hardware]:
    """A hardware of each image that hardware files name, by image; several may share one."""
    found: dict[str, Hardware] = {}
    for _, declared in sorted(matrix.hardware.items()):
        if declared.value.image and declared.value.image.dockerfile:
            found.setdefault(declared.value.image.name, declared.value)
    return found


def _build(hardware: Hardware, registry: str, settings: Settings) -> Any:
    from buildkite_sdk import CommandStep

    from ci.steps import AGENT_LOST, retries

    image = hardware.image
    assert image is not None and image.dockerfile is not None
    words = [f"{name}={value}" for name, value in sorted(settings.images.arguments.get(image.name, {}).items())]
    return CommandStep(
        key=f"image:{image.name}",
        label=f"image {image.name}",
        command=[shlex.join(["bash", SCRIPT, f"{registry}/{image.name}", image.dockerfile, *words])],
        agents={"queue": settings.images.queues.get(hardware.host, settings.images.queues["any"])},
        timeout_in_minutes=240,
        concurrency_group=f"vime/image/{image.name}",
        concurrency=1,
        retry=retries(settings, AGENT_LOST),
        artifact_paths=["image-*.json"],
    )
