"""The science hash: what is learned, apart from where and how it runs. `science.yaml` says which values of the configuration belong to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from matrix.canonical import canonical_json
from matrix.fragments import Key, lookup
from matrix.rule import Strict


class ScienceKey(Strict):
    """A key that is part of the science. At `neutral` it is left out of the hash (for keys younger than recorded baselines)."""

    key: str
    neutral: Any = Field(default=None)

    @property
    def has_neutral(self) -> bool:
        return "neutral" in self.model_fields_set


class OtherKey(Strict):
    """A key that is not, and why."""

    key: str
    because: str


class ScienceRules(Strict):
    science: list[ScienceKey]
    not_science: list[OtherKey]


class ScienceTable:
    """The two lists, asked by key path."""

    def __init__(self, rules: ScienceRules | None = None):
        self.science: dict[Key, ScienceKey] = {_path(entry.key): entry for entry in rules.science} if rules else {}
        self.other: dict[Key, str] = {_path(entry.key): entry.because for entry in rules.not_science} if rules else {}

    def is_science(self, key: Key) -> bool | None:
        """Whether a key path is science; None where no list says. The longest entry that holds the key decides."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.science:
                return True
            if key[:length] in self.other:
                return False
        return None

    def undecided(self, leaves: Iterator[Key]) -> list[Key]:
        return [key for key in leaves if self.is_science(key) is None]

    def project(self, config: Mapping[str, Any], defaults: Mapping[Key, Any]) -> dict[str, Any]:
        """The science values of a configuration by dotted key, defaults filled in. Raises KeyError for a science key without value and default."""
        found: dict[str, Any] = {}
        for path, entry in self.science.items():
            value = _effective(config, path, defaults)
            if entry.has_neutral and canonical_json(value) == canonical_json(entry.neutral):
                continue
            found[entry.key] = value
        return found


def _effective(config: Mapping[str, Any], path: Key, defaults: Mapping[Key, Any]) -> Any:
    return lookup(config, path) if _has(config, path) else defaults[path]


def _has(config: Mapping[str, Any], path: Key) -> bool:
    try:
        lookup(config, path)
    except KeyError:
        return False
    return True


def _path(dotted: str) -> Key:
    return tuple(dotted.split("."))
