"""Reading a YAML file strictly (YAML 1.2: `no` is text, `1e-6` a number; duplicate keys are errors) while remembering the line of each key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from vime.errors import UserError

KeyPath = tuple[str, ...]


def parse_scalar(text: str) -> Any:
    """The value of `--set key=TEXT`, read as YAML. Raises UserError, to be put behind the key, when it is none."""
    try:
        return _plain(YAML(typ="rt").load(text))
    except YAMLError as error:
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"not valid YAML: {problem}: quote it if it is meant as text") from None


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The file's mapping, and the line (from 1) of every key path in it. Raises UserError with file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    try:
        tree = YAML(typ="rt").load(text)
    except DuplicateKeyError as error:
        where = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{where}: {str(error.problem).strip()}: remove one of the two") from None
    except MarkedYAMLError as error:
        where = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{where}: not valid YAML: {error.problem}") from None
    except YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(tree, CommentedMap):
        raise UserError(f"{path}: expected a mapping of configuration keys, found {type(tree).__name__ if tree is not None else 'an empty file'}")
    lines: dict[KeyPath, int] = {}
    _collect_lines(tree, (), lines)
    return _plain(tree), lines


def _collect_lines(node: Any, at: KeyPath, lines: dict[KeyPath, int]) -> None:
    if isinstance(node, CommentedMap):
        for key, value in node.items():
            path = (*at, str(key))
            lines[path] = node.lc.key(key)[0] + 1
            _collect_lines(value, path, lines)
    elif isinstance(node, CommentedSeq):
        for index, value in enumerate(node):
            _collect_lines(value, (*at, str(index)), lines)


def _plain(node: Any) -> Any:
    """ruamel's round-trip types as Python's own."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    if isinstance(node, bool) or node is None:
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node
