"""How the pipelines of a checkout look: `ci/settings.yaml`, read as strictly as the matrix."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, Field, model_validator

from matrix.hardware_types import Count, Name, Platform, Text
from matrix.problem import MatrixError, Problem, Where
from matrix.rule import Strict
from matrix.typed import typed
from matrix.yaml_file import read_yaml

FOLDER = Path(__file__).resolve().parent
SETTINGS = FOLDER / "settings.yaml"
POLICY = FOLDER / "policy.yaml"

M = TypeVar("M", bound=BaseModel)


class TierSteps(Strict):
    priority: int
    wait_for_checks: bool = False


class Check(Strict):
    """A step that has nothing to do with cells and must pass."""

    key: Name
    label: Text
    commands: Annotated[list[Text], Field(min_length=1)]
    minutes: Count


class Interpreter(Strict):
    """How a step reaches Python with this checkout's packages on a platform."""

    prepare: list[Text] = []
    python: Text


class Commands(Strict):
    """Templates; the placeholders of each are those of its default."""

    cell: Text
    verdict: Text
    report: Text

    @model_validator(mode="after")
    def _placeholders(self) -> Self:
        known = {
            "cell": {"python", "cell", "seed", "results"},
            "verdict": {"python", "cell", "seeds", "results"},
            "report": {"python", "results", "report"},
        }
        for name, allowed in known.items():
            used = {field for _, field, _, _ in string.Formatter().parse(getattr(self, name)) if field is not None}
            if used - allowed:
                raise ValueError(f"commands.{name} has the placeholder {{{sorted(used - allowed)[0]}}}; known: {', '.join(sorted(allowed))}")
            if name != "report" and not {"cell", "results"} <= used:
                raise ValueError(f"commands.{name} must hold {{cell}} and {{results}}: else every step would do the same")
        return self


class Status(Strict):
    """The commit status of a gate. With `url`, the gate sets state and text itself, by the token that `secret` names."""

    context: Text
    url: Text | None = None
    secret: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")] | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if bool(self.url) != bool(self.secret):
            raise ValueError("status.url and status.secret go together: where to post, and the name of the secret that holds the token")
        return self


class Images(Strict):
    """Where images are built and with which build arguments. What is pushed is named by its digest."""

    queues: dict[Literal["any", "x86_64", "aarch64"], Name]
    arguments: dict[Name, dict[str, str]] = {}


class Settings(Strict):
    queue: Name
    registry: Text | None = None
    upload_limit: Annotated[int, Field(ge=10)] = 500
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    margin_minutes: Count = 15
    tiers: dict[Name, TierSteps]
    by_hand: TierSteps
    pools: dict[Name, Count] = {}
    checks: list[Check] = []
    platforms: dict[Platform, Interpreter]
    commands: Commands
    images: Images
    policy: Text = "ci/policy.yaml"
    status: Status

    @model_validator(mode="after")
    def _cpu(self) -> Self:
        if "cpu" not in self.platforms:
            raise ValueError("platforms.cpu is missing: judging, report and gate run there")
        return self

    def tier(self, name: str | None) -> TierSteps:
        """What is said of a tier; of none: cells that a person named. Raises MatrixError for a tier without an entry."""
        if name is None:
            return self.by_hand
        if name not in self.tiers:
            raise MatrixError([Problem(Where(str(SETTINGS)), f"tiers has no '{name}': add its priority")])
        return self.tiers[name]


def read_typed(path: Path, model: type[M]) -> M:
    """A YAML file as `model`. Raises MatrixError with every fault, each with its line."""
    if not path.is_file():
        raise MatrixError([Problem(Where(str(path)), "no such file")])
    document = read_yaml(path)
    value = typed(document, model)
    if value is None or document.problems:
        raise MatrixError(document.problems or [Problem(Where(str(path)), "is empty")])
    return value


def read_settings(path: Path | None = None) -> Settings:
    return read_typed(path or SETTINGS, Settings)
