"""From a file and the command line to one frozen `Config`, with the origin of every value."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from vime.config.check import check
from vime.config.tree import Config
from vime.config.yaml_file import KeyPath, parse_scalar, read_yaml
from vime.errors import UserError

RECIPE_KEY = "recipe"  # names a file whose values lie beneath this file's
HASH_KEY = "hash"  # written into a run's config.yaml beside the values; not a setting
NOT_HASHED = ("run_dir",)  # where a run is written does not change what it is

_adapter = TypeAdapter(Config)


@dataclass(frozen=True)
class Resolved:
    """A configuration, where each leaf came from (`default`, `recipe FILE:LINE`, `file FILE:LINE`, `command line`), and its hash."""

    config: Config
    provenance: dict[str, str]
    hash: str

    def as_dict(self) -> dict[str, Any]:
        return to_dict(self.config)


def resolve(path: Path, overrides: list[str] | None = None) -> Resolved:
    """Read `path`, put `key.path=value` overrides on top, validate once. Raises UserError naming file, line, key, value and the mend."""
    values, origin = _layers(Path(path))
    for override in overrides or []:
        key, value = _parse_override(override)
        _refuse_unknown_key(key, f"--set {override}")
        _put(values, key, value)
        origin = {known: place for known, place in origin.items() if known[: len(key)] != key}
        origin[key] = "command line"
    return from_dict(values, origin, str(path))


def from_dict(values: dict[str, Any], origin: dict[KeyPath, str] | None = None, name: str = "config") -> Resolved:
    """Validate a nested dict of values as a configuration."""
    origin = origin or {}
    try:
        config = _adapter.validate_json(json.dumps(values))
    except ValidationError as error:
        raise UserError("\n".join(_explain(item, origin, name) for item in error.errors())) from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: a value is not plain YAML data: {error}") from None
    problems = check(config)
    if problems:
        raise UserError("\n".join(f"{_place(tuple(key.split('.')), origin, name)}: {key}: {problem}" for key, problem in problems))
    leaves = {key for key, _ in _leaves(to_dict(config))}
    return Resolved(config, {".".join(key): _origin_of(key, origin) for key in sorted(leaves)}, config_hash(config))


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested data, ready for JSON or YAML."""
    return _adapter.dump_python(config, mode="json")


def leaf_values(config: Config) -> list[tuple[str, Any]]:
    """Every leaf as (dotted key, value), in the order of the tree."""
    return [(".".join(key), value) for key, value in _leaves(to_dict(config))]


def config_hash(config: Config) -> str:
    """sha256 of the canonical JSON of every value but those of NOT_HASHED."""
    values = {key: value for key, value in to_dict(config).items() if key not in NOT_HASHED}
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def schema() -> dict[str, Any]:
    """JSON Schema of the configuration file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "vime configuration", **_adapter.json_schema()}


def _layers(path: Path) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    values, lines = read_yaml(path)
    base: dict[str, Any] = {}
    origin: dict[KeyPath, str] = {}
    values.pop(HASH_KEY, None)
    recipe = values.pop(RECIPE_KEY, None)
    if recipe is not None:
        if not isinstance(recipe, str):
            raise UserError(f"{path}:{lines[(RECIPE_KEY,)]}: recipe: expected the path of a YAML file, got {recipe!r}")
        base, below = _layers(path.parent / recipe)
        origin = {key: place.replace("file ", "recipe ", 1) for key, place in below.items()}
    for key, line in lines.items():
        if key[0] not in (RECIPE_KEY, HASH_KEY):
            _refuse_unknown_key(key, f"{path}:{line}")
            origin[key] = f"file {path}:{line}"
    return _merge(base, values), origin


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = _merge(out[key], value) if both else value
    return out


def _parse_override(text: str) -> tuple[KeyPath, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"--set {text}: expected key.path=value, for example --set train.lr=1e-6")
    try:
        return tuple(key.strip().split(".")), parse_scalar(value) if value else ""
    except UserError as error:
        raise UserError(f"--set {text}: {error}") from None


def _put(values: dict[str, Any], key: KeyPath, value: Any) -> None:
    for part in key[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise UserError(f"--set {'.'.join(key)}: {part} is not a group of keys")
    values[key[-1]] = value


def _refuse_unknown_key(key: KeyPath, place: str) -> None:
    """Walk the dataclass tree along `key`; free-form dicts (megatron, vllm, labels, task_args …) take any key."""
    kind: Any = Config
    for depth, part in enumerate(key):
        if not dataclasses.is_dataclass(kind):
            return
        hints = typing.get_type_hints(kind)
        if part not in hints:
            nearest = difflib.get_close_matches(part, [*hints, RECIPE_KEY], n=1, cutoff=0.5)
            mend = f"did you mean {'.'.join((*key[:depth], nearest[0]))}?" if nearest else f"known here: {', '.join(hints)}"
            raise UserError(f"{place}: unknown key {'.'.join(key[: depth + 1])}: {mend}")
        kind = _bare(hints[part])


def _bare(hint: Any) -> Any:
    """Strip Optional."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inside = [a for a in typing.get_args(hint) if a is not type(None)]
        return inside[0] if len(inside) == 1 else hint
    return hint


def _leaves(node: Any, at: KeyPath = ()) -> typing.Iterator[tuple[KeyPath, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, (*at, key))
    else:
        yield at, node


def _origin_of(key: KeyPath, origin: dict[KeyPath, str]) -> str:
    """The nearest of the key itself and the groups it lies in that somebody wrote."""
    for depth in range(len(key), 0, -1):
        if key[:depth] in origin and (depth == len(key) or origin[key[:depth]] == "command line"):
            return origin[key[:depth]]
    return "default"


def _place(key: KeyPath, origin: dict[KeyPath, str], name: str) -> str:
    for depth in range(len(key), 0, -1):
        if key[:depth] in origin:
            return origin[key[:depth]].removeprefix("file ").removeprefix("recipe ")
    return name


def _explain(item: Any, origin: dict[KeyPath, str], name: str) -> str:
    key = tuple(str(part) for part in item["loc"])
    if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{_place(key, origin, name)}: unknown key {'.'.join(key)}"
    if item["type"] in ("missing", "missing_argument"):
        return f"{name}: missing key {'.'.join(key)}"
    return f"{_place(key, origin, name)}: {'.'.join(key)}: {item['msg'][0].lower()}{item['msg'][1:]}, got {item['input']!r}"
