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
    origins: dict[Key, Fragment] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, key: Key, fallback: Where) -> Where:
        """The place of `key`, of the nearest group that holds it, or of something below it."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.origins:
                return self.origins[key[:length]].where(key[:length])
        below = next((origin for origin in self.origins if origin[: len(key)] == key), None) if key else None
        return fallback if below is None else self.origins[below].where(below)


def leaves(values: Mapping[str, Any], at: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Every value that is not a non-empty mapping, with its key path."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*at, str(name)))
        else:
            yield (*at, str(name)), value


def compose(fragments: list[Fragment]) -> Composed:
    """Join fragments. Two that set one key to different values contradict each other: no order among declarations says who wins."""
    result = Composed()
    for fragment in fragments:
        _join(result, result.values, fragment.values, (), fragment)
    return result


def _join(result: Composed, node: dict[str, Any], values: Mapping[str, Any], at: Key, fragment: Fragment) -> None:
    for name, value in values.items():
        key = (*at, str(name))
        held = node.get(name, _NOTHING)
        if isinstance(value, dict) and value:
            if held is _NOTHING or held == {}:
                held = node[name] = {}
            if isinstance(held, dict):
                _join(result, held, value, key, fragment)
            else:
                for leaf, inner in leaves(value, key):
                    result.problems.append(_contradiction(result, leaf, inner, f"{'.'.join(key)} is a plain value", key, fragment))
        elif held is _NOTHING:
            node[name] = value
            result.origins[key] = fragment
        elif held != value and not (value == {} and isinstance(held, dict)):
            result.problems.append(_contradiction(result, key, value, f"contradicts {held!r} set", key, fragment))


_NOTHING = object()


def _contradiction(result: Composed, leaf: Key, value: Any, said: str, key: Key, fragment: Fragment) -> Problem:
    where = fragment.where(leaf)
    mend = "" if leaf != key else ": set it in one place"
    return Problem(where, f"{'.'.join(leaf)} = {value!r}{' ' if leaf == key else ': '}{said} at {result.where(key, where)}{mend}")


def lookup(values: Mapping[str, Any], key: Key) -> Any:
    """The value at a key path. Raises KeyError with the dotted path when there is none."""
    node: Any = values
    for part in key:
        if not isinstance(node, Mapping) or part not in node:
            raise KeyError(".".join(key))
        node = node[part]
    return node
