"""A document against its pydantic model: every mismatch as one line with its place, its value and the mend."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from matrix.problem import Problem, nearest
from matrix.yaml_file import Document, Path_

M = TypeVar("M", bound=BaseModel)


def typed(document: Document, model: type[M]) -> M | None:
    """The document as `model`, or None with the reasons added to `document.problems`."""
    if document.data is None:
        return None
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        for detail in details:
            if not _is_misspelt(detail, details):
                _report(document, model, detail)
        return None


def _is_misspelt(missing: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Whether a key is missing because it stands there misspelt: that is one fault, and the unknown key's message names the right one."""
    if missing["type"] != "missing":
        return False
    name, parent = str(missing["loc"][-1]), missing["loc"][:-1]
    unknown = [str(other["loc"][-1]) for other in details if other["type"] == "extra_forbidden" and other["loc"][:-1] == parent]
    return any(get_close_matches(key, [name], cutoff=0.6) for key in unknown)


def _report(document: Document, model: type[BaseModel], detail: ErrorDetails) -> None:
    path: Path_ = tuple(part for part in detail["loc"] if part != "[key]")
    if any(path[:length] in document.bad for length in range(1, len(path) + 1)):
        return
    kind, parent = detail["type"], path[:-1]
    name = path[-1] if path else ""
    if kind == "extra_forbidden":
        document.complain(path, f"unknown key '{_dotted(path)}'{nearest(str(name), _fields_at(model, parent))}")
    elif kind == "missing":
        said = f"'{name}' is missing{f' in {_dotted(parent)}' if parent else ''}: add it"
        document.problems.append(Problem(document.where(parent), said))  # the group's other keys may have faults of their own
    else:
        write = _MESSAGES.get(kind, _other)
        document.complain(path, f"{_dotted(path)}: {write(document.texts.get(path), detail)}" if path else _top(detail))


def _wanted(what: str) -> Callable[[str | None, ErrorDetails], str]:
    def message(text: str | None, detail: ErrorDetails) -> str:
        value = text if text is not None else repr(detail["input"])
        return f"{value} is {_said(detail['input'])}; {what} is wanted"

    return message


def _text_wanted(text: str | None, detail: ErrorDetails) -> str:
    value = detail["input"]
    if text is None or value is None:
        return f"{_said(value)} where text is wanted"
    return f'{text} is read as {_said(value)} ({value}): write "{text}" in quotes for text'


def _said(value: Any) -> str:
    for kind, word in ((bool, "a truth value"), (int, "a number"), (float, "a number"), (str, "text"), (date, "a date"), (dict, "a mapping"), (list, "a list")):
        if isinstance(value, kind):
            return word
    return "null"


def _literal(text: str | None, detail: ErrorDetails) -> str:
    expected = detail.get("ctx", {}).get("expected", "")
    choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
    return f"'{text}' is none of {', '.join(choices)}{nearest(str(text), choices) if text else ''}"


def _pattern(text: str | None, detail: ErrorDetails) -> str:
    if "[0-9a-f]{64}" in str(detail.get("ctx", {}).get("pattern", "")):
        return f"'{detail['input']}' is not a SHA-256 (64 hexadecimal digits)"
    return f"'{detail['input']}' is not a name: lower-case letters and digits joined by '-' (a model's also by '.')"


def _own(text: str | None, detail: ErrorDetails) -> str:
    return str(detail["msg"]).removeprefix("Value error, ")


def _other(text: str | None, detail: ErrorDetails) -> str:
    message = _own(text, detail)
    return f"{text}: {message}" if text is not None else message


def _top(detail: ErrorDetails) -> str:
    """Of the whole file, or a rule about all of it."""
    return f"the file holds {_said(detail['input'])}; keys with values are wanted" if detail["type"] == "model_type" else _own(None, detail)


_MESSAGES: dict[str, Callable[[str | None, ErrorDetails], str]] = {
    "string_type": _text_wanted,
    "int_type": _wanted("a whole number"),
    "int_from_float": _wanted("a whole number"),
    "float_type": _wanted("a number"),
    "bool_type": _wanted("true or false"),
    "dict_type": _wanted("a mapping"),
    "model_type": _wanted("a mapping"),
    "list_type": _wanted("a list"),
    "date_type": _wanted("a date (2026-01-31)"),
    "literal_error": _literal,
    "string_pattern_mismatch": _pattern,
    "value_error": _own,
}


def _fields_at(model: type[BaseModel], path: Path_) -> list[str]:
    """The keys that the model allows at `path`, for the nearest name."""
    current: Any = model
    for part in path:
        models = _models_in(current)
        if isinstance(part, int) or not models:
            continue
        field = models[0].model_fields.get(str(part))
        current = field.annotation if field else current
    found = _models_in(current)
    return list(found[0].model_fields) if found else []


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in _models_in(argument)]


def _dotted(path: Path_) -> str:
    return ".".join(str(part) for part in path)
