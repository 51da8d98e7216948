"""From a field's annotation and default in source text to a readable type, a JSON Schema and a default value. Pure syntax: nothing is imported."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from vime.config.static_source import Found, Source

Schema = dict[str, Any] | bool  # True: anything; False: nothing that YAML can say

SIMPLE: dict[str, Schema] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "None": {"type": "null"},
    "dict": {"type": "object"},
    "list": {"type": "array"},
    "tuple": {"type": "array"},
    "set": {"type": "array"},
}
SPELLINGS = {"List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "NoneType": "None", "Mapping": "dict", "Sequence": "list"}
BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
FACTORIES: dict[str, Any] = {"list": [], "dict": {}, "set": [], "tuple": []}


@dataclass(frozen=True)
class Kind:
    """One alternative of a type: as a person writes it, and what it accepts."""

    text: str
    schema: Schema


def read_type(source: Source, module: str, node: ast.expr) -> list[Kind]:
    """The alternatives of an annotation. Aliases of the package (`ModelDType = Literal[…]`) are written out; a class keeps its name and accepts anything."""
    if isinstance(node, ast.Constant):
        return read_type(source, module, ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else [_simple(str(node.value))]
    if isinstance(node, ast.BinOp):
        return _merge([*read_type(source, module, node.left), *read_type(source, module, node.right)])
    if isinstance(node, ast.Subscript):
        return _read_subscript(source, module, node)
    name = SPELLINGS.get(_last(node), _last(node))
    if name in SIMPLE:
        return [_simple(name)]
    found = source.find(module, node.id) if isinstance(node, ast.Name) else None
    if found is not None and isinstance(found.node, ast.Name | ast.Subscript | ast.BinOp):
        return read_type(source, found.module, found.node)
    return [Kind(ast.unparse(node), name != "Callable")]


def _read_subscript(source: Source, module: str, node: ast.Subscript) -> list[Kind]:
    name = SPELLINGS.get(_last(node.value), _last(node.value))
    inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        return [_literal(_literal_values(source, module, inner))]
    if name == "Optional":
        return _merge([*read_type(source, module, inner[0]), _simple("None")])
    if name == "Union":
        return _merge([kind for part in inner for kind in read_type(source, module, part)])
    if name in ("Annotated", "InitVar", "Final"):
        return read_type(source, module, inner[0])
    parts = [read_type(source, module, part) for part in inner if not (isinstance(part, ast.Constant) and part.value is ...)] if name in SIMPLE else []
    if name in ("list", "set", "tuple") and len(parts) == 1:
        return [Kind(f"{name}[{type_text(parts[0])}]", {"type": "array", "items": type_schema(parts[0])})]
    if name == "dict" and len(parts) == 2:
        return [Kind(f"dict[{type_text(parts[0])}, {type_text(parts[1])}]", {"type": "object", "additionalProperties": type_schema(parts[1])})]
    if name in SIMPLE:
        return [Kind(ast.unparse(node), SIMPLE[name])]
    return [Kind(ast.unparse(node), name != "Callable")]


def _literal_values(source: Source, module: str, nodes: list[ast.expr]) -> list[Any]:
    """Values of a Literal; a nested alias (`Literal["auto", RunnerType]`) is opened."""
    out: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Constant):
            out.append(node.value)
        elif isinstance(node, ast.Name) and (found := source.find(module, node.id)) and isinstance(found.node, ast.Subscript):
            inner = found.node.slice
            out += _literal_values(source, found.module, list(inner.elts) if isinstance(inner, ast.Tuple) else [inner])
    return out


def _literal(values: list[Any]) -> Kind:
    return Kind(f"Literal[{', '.join(repr(value) for value in values)}]", {"enum": values} if values else True)


def _simple(name: str) -> Kind:
    return Kind(name, SIMPLE[name])


def _merge(kinds: list[Kind]) -> list[Kind]:
    return list({kind.text: kind for kind in kinds}.values())


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def type_text(kinds: list[Kind]) -> str:
    return " | ".join(kind.text for kind in kinds)


def type_schema(kinds: list[Kind], bounds: dict[str, float] | None = None) -> Schema:
    """The JSON Schema of a union; numbers inside it obey `bounds`."""
    schemas = [kind.schema for kind in kinds]
    if any(schema is True for schema in schemas):
        return True
    if bounds:
        schemas = [{**schema, **bounds} if isinstance(schema, dict) and schema.get("type") in ("integer", "number") else schema for schema in schemas]
    known = [schema for schema in schemas if schema is not False]
    return False if not known else known[0] if len(known) == 1 else {"anyOf": known}


@dataclass(frozen=True)
class Default:
    """A field's default: `value` when it is a plain one, else `text`, the expression it comes from; neither when the field is required."""

    value: Any = None
    plain: bool = False
    text: str = ""
    bounds: dict[str, float] | None = None


def read_default(source: Source, module: str, node: ast.expr | None, depth: int = 6) -> Default:
    """Follows `ModelConfig.dtype`, `get_field(ModelConfig, "dtype")`, `field(default=…)` and named constants to the value they stand for."""
    if node is None:
        return Default()
    try:
        return Default(_plain(_constant(node)), plain=True)
    except (ValueError, TypeError):
        pass  # not a constant: an expression to follow
    target = _other_field(node)
    if target is not None and depth:
        return _default_of_field(source, module, *target, depth) or Default(text=ast.unparse(node))
    if isinstance(node, ast.Name) and depth and (found := source.find(module, node.id)) and isinstance(found.node, ast.expr):
        return read_default(source, found.module, found.node, depth - 1)
    if isinstance(node, ast.Call) and _last(node.func) in ("field", "Field"):
        return _default_of_call(source, module, node, depth)
    return Default(text=ast.unparse(node))


def _other_field(node: ast.expr) -> tuple[str, str] | None:
    """(class, field) when the expression names another dataclass' default."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    if isinstance(node, ast.Call) and _last(node.func) == "get_field" and len(node.args) == 2:
        first, second = node.args
        if isinstance(first, ast.Name) and isinstance(second, ast.Constant):
            return first.id, str(second.value)
    return None


def _default_of_field(source: Source, module: str, owner: str, name: str, depth: int) -> Default | None:
    found: Found | None = source.find(module, owner)
    if found is None or not isinstance(found.node, ast.ClassDef):
        return None
    field = source.fields(module, owner).get(name)
    return None if field is None else read_default(source, field[0], field[1].value, depth - 1)


def _default_of_call(source: Source, module: str, node: ast.Call, depth: int) -> Default:
    """`field(…)` of dataclasses and `Field(…)` of pydantic."""
    words = {word.arg: word.value for word in node.keywords if word.arg}
    bounds = {
        BOUNDS[key]: value.value for key, value in words.items() if key in BOUNDS and isinstance(value, ast.Constant) and isinstance(value.value, int | float)
    }
    value = words.get("default", node.args[0] if node.args and not (isinstance(node.args[0], ast.Constant) and node.args[0].value is ...) else None)
    if value is not None:
        inner = read_default(source, module, value, depth - 1)
        return Default(inner.value, inner.plain, inner.text, bounds or None)
    factory = words.get("default_factory")
    if factory is None:
        return Default(bounds=bounds or None)
    if isinstance(factory, ast.Lambda):
        inner = read_default(source, module, factory.body, depth - 1)
        return Default(inner.value, inner.plain, inner.text, bounds or None)
    name = _last(factory)
    return Default(FACTORIES[name], plain=True) if name in FACTORIES else Default(text=f"{ast.unparse(factory)}()")


def _constant(node: ast.expr) -> Any:
    """Like ast.literal_eval, which refuses `16 * 1024 * 1024` and `2**32`. Raises ValueError for anything that is no constant."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow):
        left, right = _constant(node.left), _constant(node.right)
        if isinstance(left, int | float) and isinstance(right, int | float):
            return left * right if isinstance(node.op, ast.Mult) else left**right
    return ast.literal_eval(node)


def _plain(value: Any) -> Any:
    """As JSON says it: tuples and sets are lists."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    return value
