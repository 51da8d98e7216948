"""What a hardware file may say: the machine, its devices, the software that must be on it, and how CI reaches it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from matrix.cell_id import PART
from matrix.rule import Strict

Name = Annotated[str, StringConstraints(pattern=rf"^{PART}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Gib = Annotated[float, Field(gt=0)]
Digest = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64}|unbuilt)$")]

Platform = Literal["cpu", "cuda", "npu"]
MARKERS: dict[str, str] = {"cpu": "cpu_e2e", "cuda": "gpu_e2e", "npu": "npu_e2e"}
RAY_RESOURCES: dict[str, str] = {"cpu": "CPU", "cuda": "GPU", "npu": "NPU"}


class Limits(Strict):
    """Deadlines the runner keeps, in seconds."""

    start_s: Seconds  # until the first step is recorded
    stall_s: Seconds  # without a new metric or event after that
    wall_s: Seconds  # of one run


class Image(Strict):
    """The container that cells run in, by content. `unbuilt` says that nobody has built it: such a cell cannot run in CI, and plans say so."""

    name: Text  # without the registry
    dockerfile: Text | None = None  # in the checkout
    digest: Digest


class Buildkite(Strict):
    """Where CI sends the hardware's steps."""

    queue: Name
    classes: Annotated[list[Count], Field(min_length=1)]  # devices a step may ask for, ascending
    machines: Count | None = None  # in the pool; null: not known


class VersionSet(Strict):
    """Versions that were seen to work together."""

    name: Name
    summary: Text
    versions: dict[str, str]  # package -> version, or `unpinned`


class VersionSets(Strict):
    version_sets: list[VersionSet]


class Hardware(Strict):
    """One kind of machine. `devices_per_node` of a CPU are logical slots: what the lease pool hands out."""

    name: Name
    title: Text
    platform: Platform
    chip: Text | None = None
    host: Literal["x86_64", "aarch64", "any"] = "any"
    devices_per_node: Count
    max_nodes: Count = 1
    device_names: list[Text] = []  # parts of what the driver calls the devices, any of them; empty: not looked at
    device_memory_gib: Gib | None = None  # of one device; of a CPU: what one slot's share of a run takes
    reserved_gib: Annotated[float, Field(ge=0)] = 0.0  # of one device: driver context, communicators, allocator slack
    visible_devices: Text | None = None  # the environment variable by which a caller narrows the devices, and a run is given its own
    ray_resource: Literal["CPU", "GPU", "NPU"]
    device_files: list[Text] = []  # passed into a container; a trailing * stands for the device number
    contiguous: bool = False  # a run's devices must be neighbours
    probe: Text | None = None  # the command that shows driver and firmware
    twins: bool  # cells on this hardware run the model's twin
    unvalidated: Text | None = None  # why nothing has shown yet that cells run on it
    buildkite: Buildkite | None = None
    image: Image | None = None
    version_set: Name | None = None  # of versions.yaml
    alternatives: list[Name] = []  # further sets it is known with
    versions: dict[str, str] = {}  # package -> version; names the option catalogues under matrix/schema/options/
    environment: dict[str, str] = {}  # of every process of a run
    limits: Limits
    settings: dict[Name, dict[str, Any]] = {}  # what a setting of a mode needs on this hardware in particular
    config: dict[str, Any] = {}

    @property
    def marker(self) -> str:
        return MARKERS[self.platform]

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.ray_resource != RAY_RESOURCES[self.platform]:
            raise ValueError(f"ray_resource is {self.ray_resource}, platform {self.platform} has {RAY_RESOURCES[self.platform]}")
        if bool(self.version_set) == bool(self.versions):
            raise ValueError("exactly one of version_set (a name of versions.yaml) and versions is wanted")
        if self.buildkite and (sorted(set(self.buildkite.classes)) != self.buildkite.classes or self.buildkite.classes[-1] > self.devices_per_node):
            raise ValueError(f"buildkite.classes {self.buildkite.classes}: ascending sizes of at most devices_per_node ({self.devices_per_node}) are wanted")
        if self.platform != "cpu":
            missing = [name for name in ("device_memory_gib", "visible_devices", "buildkite", "image") if getattr(self, name) is None]
            if missing:
                raise ValueError(f"{' and '.join(missing)} must be said of a {self.platform} machine (an image that is not built yet has digest: unbuilt)")
        return self
