"""What each declaration file may say: strict pydantic models. Cross-references and composition are checked by `matrix/loader.py` and `matrix/checks.py`."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from matrix.cell_id import MODEL
from matrix.hardware_types import MARKERS, Count, Hardware, Limits, Name, Text, VersionSet, VersionSets
from matrix.rule import Exactness, JudgeRule, Strict

__all__ = ["MARKERS", "Hardware", "Limits", "VersionSet", "VersionSets"]

ModelName = Annotated[str, StringConstraints(pattern=rf"^{MODEL}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|unpinned)$")]
Fragment = dict[str, Any]  # a piece of vime's configuration; validated by vime's own JSON Schema after composition


class Deviation(Strict):
    """A ratio or size in which a twin differs from its model, and why the twin still stands for it. `ratio` is a product or quotient of config keys."""

    ratio: Text
    model: float
    twin: float
    reason: Text


class WarmStart(Strict):
    """Weights that runs of a twin begin from, kept in the checkout as a Hugging Face directory."""

    directory: Text  # under matrix/warmstarts/
    sha256: Sha256  # of the tensors' content (`python -m matrix fingerprint`)


class Twin(Strict):
    """The same architecture class at a size that two CPU cores train in a minute."""

    config: dict[str, Any]  # a Hugging Face config.json
    deviations: list[Deviation] = []
    keeps: list[Text] = []  # ratios in which it does not differ
    warm_starts: dict[Name, WarmStart] = {}  # by the name a recipe asks for


class Model(Strict):
    """One model of the mission: where it comes from, its architecture facts, and its twin."""

    name: ModelName
    family: Name
    hf_id: Text
    hf_revision: Revision = "unpinned"  # a commit of the hub's repository; `unpinned` says that nobody has recorded which one, and plans show it
    modelscope_id: Text | None = None
    parameters: Count | None = None  # as published with the weights; `check` holds the architecture's count to it
    architecture: dict[str, Any]  # the model's own config.json, as published
    twin: Twin | None = None


class Setting(Strict):
    """One named setting of a mode and the configuration it stands for."""

    name: Name
    summary: Text
    config: Fragment = {}
    defaults: Fragment = {}  # values that another setting of the same mode may set otherwise
    needs: list[Text] = []  # keys that the cell must set to something else than vime's default, as `parallel.context`
    needs_setting: Name | None = None  # a setting that must stand beside it
    awaits: Text | None = None  # what vime lacks before such cells can run; they are declared as unvalidated


class Slot(Strict):
    """Settings of which a mode holds at most one (exactly one where `required`)."""

    name: Name
    required: bool = False
    settings: Annotated[list[Setting], Field(min_length=1)]


class Exclusion(Strict):
    """Settings that cannot stand together in one mode: everywhere, or for the models and hardware named."""

    settings: Annotated[list[Name], Field(min_length=1)]
    models: list[ModelName] = []
    hardware: list[Name] = []
    reason: Text


class Modes(Strict):
    """The vocabulary of modes; the order of the slots is the canonical order of a mode's settings."""

    slots: Annotated[list[Slot], Field(min_length=1)]
    excludes: list[Exclusion] = []


class Reward(Strict):
    """What the reward means. A changed scale or definition is another id: runs with different ids are never compared."""

    id: Text
    range: Annotated[list[float], Field(min_length=2, max_length=2)]


class Seeds(Strict):
    """Which seeds a recipe's runs take: candidates from 100 up, `initial` of them before the first look; baselines 0 to `baseline` - 1."""

    initial: Count = 1
    candidates_from: Annotated[int, Field(ge=100)] = 100
    baseline: Annotated[int, Field(ge=1, le=100)] = 20


class Dataset(Strict):
    """A data file that is not in the checkout: where a run looks for it, where it comes from, and its content."""

    file: Text  # relative to the checkout
    source: Text  # a hub's dataset id
    sha256: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64}|unpinned)$")]


class Recipe(Strict):
    """What is trained, how, and how the curve is judged."""

    name: Name
    title: Text
    warm_start: Name | None = None  # a name in the twin's warm_starts; null: the model's published weights
    sft_recipe: str | None = None  # the `vime sft` configuration that makes the warm start, relative to the checkout
    datasets: list[Dataset] = []
    minutes: Annotated[float, Field(gt=0)]  # expected of one run, start to end, where a cell does not say otherwise
    reward: Reward
    seeds: Seeds = Seeds()
    judge: JudgeRule
    config: Fragment


class Tier(Strict):
    """When a set of cells runs and what it may cost."""

    name: Name
    summary: Text
    device_hours: Annotated[float, Field(gt=0)]
    max_minutes: Annotated[float, Field(gt=0)]
    stale_after_days: Annotated[float, Field(gt=0)] | None = None  # a verdict older than this is stale; null: cells of this tier run on demand


class Tiers(Strict):
    tiers: Annotated[list[Tier], Field(min_length=1)]


class Framework(Strict):
    """Another trainer that cells can run instead of vime, and how its output is read. Words of `command` and values of `environment` may hold placeholders:
    {python}, {config}, {out}, {seed}, {cell}, {steps}, {devices}, {model}, and {<key>} for any value of the cell's resolved configuration, e.g. {train.lr}."""

    name: Name
    title: Text
    version: Text  # of the framework; another version is another run
    command: Annotated[list[Text], Field(min_length=1)]
    environment: dict[str, str] = {}
    curves: Text = "stdout.log"  # the file it writes its metrics to, relative to {out}
    format: Name | None = None  # name of the reader; null: recognised by content
    metrics: dict[str, str] = {}  # its name of a metric -> ours, beyond what the reader knows
    exactness: Exactness = Exactness(weight_digests=False)  # in place of the recipe's: the bands that its output can show


class Tag(Strict):
    name: Name
    summary: Text


class Tags(Strict):
    """The closed vocabulary of cells' tags."""

    tags: list[Tag]


class Cell(Strict):
    """One thing that must hold. `config` sets the layout only: what is learned belongs to the recipe."""

    id: Text
    recipe: Name
    tiers: Annotated[list[Name], Field(min_length=1)]
    disposition: Literal["required", "experimental"] = "required"
    unvalidated: Text | None = None  # why nothing has shown yet that it runs; such a cell is experimental
    tags: list[Name] = []
    minutes: Annotated[float, Field(gt=0)] | None = None  # expected of one run; null: the recipe's
    wall_minutes: Annotated[float, Field(gt=0)] | None = None  # the runner's limit of one run; null: the hardware's
    framework: Name | None = None  # another trainer than vime
    config: Fragment = {}

    @model_validator(mode="after")
    def _unvalidated_is_experimental(self) -> Self:
        if self.unvalidated and self.disposition != "experimental":
            raise ValueError("a cell that says why it is unvalidated is experimental: write disposition: experimental")
        return self


class Cells(Strict):
    cells: list[Cell]


class Quarantined(Strict):
    """A cell whose outcome does not count until `expires`; it still runs and is still shown."""

    cell: Text
    owner: Text
    reason: Text
    issue: Text
    expires: date


class Quarantine(Strict):
    quarantined: list[Quarantined]
