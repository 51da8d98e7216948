"""Pieces of vime's configuration, joined into one, with the place in a declaration that each value came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from matrix.problem import Problem, Where
from matrix.yaml_file import Document, Path_

Key = tuple[str, ...]


@dataclass(frozen=True)
class Fragment:
    """A piece of configuration: where in `document` it stands (`at`), and its values. Without a document `says` names the origin."""

    values: Mapping[str, Any]
    document: Document | None = None
    at: Path_ = ()
    says: str = ""

    def where(self, key: Key) -> Where:
        return self.document.where((*self.at, *key)) if self.document else Where(self.says)


@dataclass
class Composed:
    """The joined values and, for each leaf, the place that set it."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, Where] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, key: Key, fallback: Where) -> Where:
        """The place of `key`, of the nearest group that holds it, or of something below it."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.origins:
                return self.origins[key[:length]]
        below = [where for origin, where in self.origins.items() if origin[: len(key)] == key]
        return below[0] if below and key else fallback


def leaves(values: Mapping[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value that is not a non-empty mapping, with its key path."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*at, str(name)))
        else:
            yield (*at, str(name)), value


def compose(fragments: list[Fragment]) -> Composed:
    """Join fragments. Two that set one key to different values contradict each other: no order among declarations says who wins."""
    result = Composed()
    for fragment in fragments:
        for key, value in leaves(fragment.values):
            _put(result, key, value, fragment.where(key))
    return result


def _put(result: Composed, key: Key, value: Any, where: Where) -> None:
    name = ".".join(key)
    node = result.values
    for depth, part in enumerate(key[:-1]):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            result.problems.append(Problem(where, f"{name} = {value!r}: {'.'.join(key[: depth + 1])} is a plain value at {result.where(key, where)}"))
            return
    last = key[-1]
    if last in node and node[last] != value:
        if not (value == {} and isinstance(node[last], dict)):
            result.problems.append(Problem(where, f"{name} = {value!r} contradicts {node[last]!r} set at {result.where(key, where)}: set it in one place"))
        return
    node[last] = value
    result.origins.setdefault(key, where)


def lookup(values: Mapping[str, Any], key: Key) -> Any:
    """The value at a key path. Raises KeyError with the dotted path when there is none."""
    node: Any = values
    for part in key:
        if not isinstance(node, Mapping) or part not in node:
            raise KeyError(".".join(key))
        node = node[part]
    return node
