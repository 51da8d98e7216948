"""vime's configuration as the matrix knows it: the committed JSON Schema (`vime config schema` writes it), its defaults, and the option catalogues
of the libraries whose options are passed through. vime itself is never imported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from matrix.fragments import Key
from matrix.problem import MatrixError, Problem, Where, nearest, shown

PASSED_THROUGH = {"megatron": "megatron-core", "vllm": "vllm"}  # block of the configuration -> package whose catalogue it is held to


def _read(path: Path, mend: str, *keys: str) -> dict[str, Any]:
    """A committed JSON file that a command writes. Raises MatrixError with that command where the file does not hold what it should."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        said = "" if isinstance(content, dict) and set(keys) <= set(content) else f"is not an object with {', '.join(keys)}"
    except (OSError, ValueError) as error:
        content, said = {}, f"cannot be read ({error})"
    if said:
        raise MatrixError([Problem(Where(shown(path)), f"{said}: write it again with '{mend}'")])
    return dict(content)


class VimeSchema:
    """The JSON Schema of one vime, read from `path`."""

    def __init__(self, path: Path):
        self.path = path
        self.schema = _read(path, "make schema", "properties")

    def _resolve(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in node:
            node = self.schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        return node

    def group(self, key: Key) -> Mapping[str, Any] | None:
        """The schema of the group of keys at `key`, or None where there is no such group (a leaf, a free mapping, or nothing)."""
        node: Mapping[str, Any] = self.schema
        for part in key:
            properties = self._resolve(node).get("properties", {})
            if part not in properties:
                return None
            node = properties[part]
        node = self._resolve(node)
        return node if "properties" in node else None

    def leaves(self, at: Key = ()) -> Iterator[tuple[Key, Mapping[str, Any]]]:
        """Every key path that holds a value, with its schema. A free mapping (`megatron`, `vllm`, `labels`, …) is one leaf."""
        group = self.group(at)
        for name, child in (group or {}).get("properties", {}).items():
            key = (*at, name)
            if self.group(key) is None:
                yield key, self._resolve(child)
            else:
                yield from self.leaves(key)

    @cached_property
    def defaults(self) -> dict[Key, Any]:
        """The default of every leaf that has one."""
        found = {}
        for key, node in self.leaves():
            if "default" in node:
                found[key] = node["default"]
            elif node.get("type") == "object":
                found[key] = {}
        return found

    def unknown_keys(self, values: Mapping[str, Any], at: Key = ()) -> Iterator[tuple[Key, str]]:
        """Key paths that vime does not know, each with a message that holds the nearest name."""
        group = self.group(at)
        if group is None:
            return
        for name, value in values.items():
            key = (*at, name)
            if name not in group["properties"]:
                yield key, f"vime has no key '{'.'.join(key)}'{nearest(name, group['properties'])}"
            elif isinstance(value, Mapping):
                yield from self.unknown_keys(value, key)

    def faults(self, config: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
        """Everything the schema refuses in a whole configuration, unknown keys excepted (`unknown_keys` says those better)."""
        from jsonschema import Draft202012Validator

        for error in Draft202012Validator(self.schema).iter_errors(config):
            if error.validator == "additionalProperties":
                continue
            key = tuple(str(part) for part in error.absolute_path)
            yield key, f"{'.'.join(key) or 'configuration'}: {error.message}"


class Catalogue:
    """The options of one version of one package: `{"package", "version", "sections": {section: {option: {"type", "default"}}}}`."""

    def __init__(self, path: Path):
        content = _read(path, "make contracts", "package", "version", "sections")
        self.package: str = content["package"]
        self.version: str = content["version"]
        self.sections: dict[str, dict[str, Any]] = content["sections"]

    def unknown_options(self, block: str, values: Any) -> Iterator[tuple[Key, str]]:
        """Options that this version does not have. A package with one section takes its options directly, one with several takes them by section."""
        if not isinstance(values, Mapping):
            yield (block,), f"{block}: {values!r} is not a mapping of options"
            return
        if len(self.sections) == 1:
            yield from self._in_section((block,), next(iter(self.sections.values())), values)
            return
        for section, options in values.items():
            if section not in self.sections:
                yield (block, section), f"{self.package} options come in sections, '{section}' is none{nearest(section, self.sections)}"
            elif not isinstance(options, Mapping):
                yield (block, section), f"{block}.{section}: {options!r} is not a mapping of options"
            else:
                yield from self._in_section((block, section), self.sections[section], options)

    def _in_section(self, at: Key, known: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
        from jsonschema import Draft202012Validator

        for option, value in values.items():
            if option not in known:
                yield (*at, option), f"{self.package} {self.version} has no option '{option}'{nearest(option, known)}"
                continue
            for error in Draft202012Validator(known[option].get("schema", True)).iter_errors(value):
                wanted = known[option].get("type", "another type")
                yield (*at, option), f"{'.'.join((*at, option))}: {value!r} is not what {self.package} {self.version} takes ({wanted}): {error.message}"
                break
