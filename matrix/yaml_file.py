"""One YAML file read strictly (YAML 1.2), with the line of every key and value, and YAML's traps refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.error import MarkedYAMLError, YAMLError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from matrix.problem import Problem, Where, shown

Path_ = tuple[str | int, ...]

TAG = "tag:yaml.org,2002:"
TEXT = f"{TAG}str"
MOST_VALUES = 100_000  # of one file beyond the length of its text: aliases write out more than anybody could
DEFAULT_TAGS = {ScalarNode: TEXT, SequenceNode: f"{TAG}seq", MappingNode: f"{TAG}map"}


class Parser(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]  # libyaml's where PyYAML has it: ten times as fast
    """Leaves scalars as they are: what has no tag gets its kind's, without PyYAML's search for a resolver."""

    def descend_resolver(self, current_node: Node | None, current_index: Any) -> None:
        pass

    def ascend_resolver(self) -> None:
        pass

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        return DEFAULT_TAGS[kind]


# What a plain scalar is: YAML 1.2's core schema, with calendar dates so that one where text is meant is noticed. The first that matches.
KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("null", re.compile(r"(?:~|null|Null|NULL|)")),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)")),
    ("int", re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|[0-9][0-9_]*|0x[0-9a-fA-F_]+)")),
    ("float", re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?)")),
    ("float", re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")),
    ("timestamp", re.compile(r"\d{4}-\d\d?-\d\d?(?:(?:[Tt]|[ \t]+)\d\d?:\d\d:\d\d.*)?")),
)
PLAIN_START = frozenset("0123456789-+.~nNtTfF")  # no other first character begins anything but text
LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+$")
OTHER_BASE = re.compile(r"[-+]?0[xob]", re.IGNORECASE)
SWITCH = {"yes": "true", "on": "true", "no": "false", "off": "false"}


@dataclass
class Document:
    """What a file says. `data` is plain dicts, lists, str, int, float, bool, None and `date`; `lines` and `texts` are keyed by the path from the top."""

    file: str
    data: Any = None
    lines: dict[Path_, int] = field(default_factory=dict, repr=False)
    texts: dict[Path_, str] = field(default_factory=dict, repr=False)  # scalars as they are written
    problems: list[Problem] = field(default_factory=list)
    most: int = MOST_VALUES
    open: set[int] = field(default_factory=set, repr=False)  # nodes that are being read: one that holds itself has no value
    bad: set[Path_] = field(default_factory=set)  # paths with a fault of their own: what follows from it is not reported again

    def where(self, path: Path_) -> Where:
        """The place of `path`, or of the nearest thing that holds it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return Where(self.file, self.lines[path[:length]])
        return Where(self.file)

    def complain(self, path: Path_, message: str) -> None:
        self.bad.add(path)
        self.problems.append(Problem(self.where(path), message))


def read_yaml(path: Path) -> Document:
    """Read `path`. Never raises for what the file says: faults are in `problems`, and `data` is None where nothing could be read."""
    document = Document(shown(path))
    try:
        text = path.read_text(encoding="utf-8")
        document.most += len(text)
        nodes = list(_compose(text))
    except UnicodeDecodeError as error:
        document.problems.append(Problem(Where(document.file), f"byte {error.start} is not UTF-8: save the file as UTF-8"))
        return document
    except YAMLError as error:
        document.problems.append(_syntax_problem(document.file, error))
        return document
    if len(nodes) != 1:
        document.problems.append(Problem(Where(document.file), f"{len(nodes)} YAML documents where one is wanted"))
        return document
    try:
        document.data = _value(nodes[0], (), document)
    except _NoTree as error:
        document.problems.append(error.problem)
    return document


class _NoTree(Exception):
    """Aliases that lead round in a circle, or to more values than any declaration has."""

    def __init__(self, problem: Problem):
        super().__init__(str(problem))
        self.problem = problem


def _compose(text: str) -> Iterator[Node]:
    loader = Parser(text)
    try:
        while loader.check_node():
            yield loader.get_node()
    finally:
        loader.dispose()


def _syntax_problem(file: str, error: YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) if isinstance(error, MarkedYAMLError) else None
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return Problem(Where(file, mark.line + 1 if mark else 0), f"not YAML: {what}")


def _value(node: Node, path: Path_, document: Document) -> Any:
    document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, ScalarNode):
        return _scalar(node, path, document)
    if id(node) in document.open:
        raise _NoTree(Problem(document.where(path), f"{_dotted(path)}: the alias stands for something that holds it: write it out"))
    if len(document.lines) > document.most:
        raise _NoTree(Problem(document.where(path), f"more than {document.most:,} values, aliases written out: no declaration is that long"))
    document.open.add(id(node))
    try:
        if isinstance(node, MappingNode):
            return _mapping(node, path, document)
        assert isinstance(node, SequenceNode)
        return [_value(child, (*path, index), document) for index, child in enumerate(node.value)]
    finally:
        document.open.discard(id(node))


def _mapping(node: MappingNode, path: Path_, document: Document) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        name = _key(key_node, line, document)
        if name is None:
            continue
        here = (*path, name)
        if name in result:
            document.problems.append(Problem(Where(document.file, line), f"'{name}' is set twice (first on line {document.lines[here]}): keep one"))
            continue
        document.lines[here] = line
        result[name] = _value(value_node, here, document)
    return result


def _key(node: Node, line: int, document: Document) -> str | None:
    """A key is text; a number or a date as a key would change its spelling, and merge keys hide where a value comes from."""
    fault = None
    if not isinstance(node, ScalarNode):
        fault = "a key must be text"
    elif node.value == "<<":
        fault = "merge keys (<<) are not used in declarations: write the keys out"
    elif _kind(node) != "str":
        fault = f'the key {node.value} is not text: write "{node.value}" in quotes'
    elif trap := _trap(node):
        fault = f"the key {trap}"
    if fault:
        document.problems.append(Problem(Where(document.file, line), fault))
        return None
    return str(node.value)


def _kind(node: Node) -> str:
    """Of a scalar: what its tag says, or what YAML 1.2 reads in it where it has none and no quotes."""
    return plain(node.value)[0] if _is_plain(node) else str(node.tag).removeprefix(TAG)


def _trap(node: Node) -> str | None:
    """What a plain scalar is often mistaken for, with the mend, or None. Quoted and tagged scalars are what they say."""
    return plain(node.value)[1] if _is_plain(node) else None


def _is_plain(node: Node) -> bool:
    return not node.style and node.tag == TEXT  # a plain scalar's style is "" or None by parser


@lru_cache(maxsize=1 << 14)
def plain(text: str) -> tuple[str, str | None]:
    """What YAML 1.2 reads in an unquoted scalar, and what it is often mistaken for (with the mend) or None."""
    if text and text[0] not in PLAIN_START and text.lower() not in SWITCH:
        return "str", None
    kind = next((kind for kind, pattern in KINDS if pattern.fullmatch(text)), "str")
    return kind, _mistaken(text, kind)


def _mistaken(text: str, kind: str) -> str | None:
    if LEADING_ZERO.fullmatch(text):
        return f'{text} begins with a zero: write {int(text.replace("_", ""))} for a number or "{text}" for text'
    if OTHER_BASE.match(text) and kind == "int":
        return f"{text}: write the number in decimal"
    if "_" in text and kind in ("int", "float"):
        return f"{text}: write {text.replace('_', '')}"
    if text.lower() in SWITCH:
        return f'{text} is text in YAML 1.2 and a truth value in YAML 1.1: write {SWITCH[text.lower()]} or "{text}"'
    return None


def _scalar(node: Node, path: Path_, document: Document) -> Any:
    text, kind = str(node.value), _kind(node)
    document.texts[path] = text
    trap = _trap(node)
    if trap:
        document.complain(path, f"{_dotted(path)}: {trap}")
        return text
    convert = CONVERSIONS.get(kind)
    if convert is None:
        document.complain(path, f"{_dotted(path)}: the tag {node.tag} is not used in declarations: remove it")
        return text
    if kind == "null" and text == "":
        document.complain(path, f"{_dotted(path)}: no value: write null, or remove the key")
    try:
        value = convert(text)
    except ValueError as error:
        document.complain(path, f'{_dotted(path)}: {text} cannot be read ({error}): write "{text}" for text')
        return text
    if isinstance(value, float) and value - value != 0:
        document.complain(path, f"{_dotted(path)}: {text} is not a finite number")
    return value


def _dotted(path: Path_) -> str:
    return ".".join(str(part) for part in path) or "top level"


def _timestamp(text: str) -> date | str:
    """A calendar date; a time of day is left as text (no declaration holds one)."""
    return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) else text


CONVERSIONS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    "bool": lambda text: text.lower() == "true",
    "null": lambda text: None,
    "timestamp": _timestamp,
}
