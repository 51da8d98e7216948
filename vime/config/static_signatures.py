"""Signatures read from syntax trees: what a package that is not imported (or not installed) offers, in a form that can be committed and compared."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any


def describe(node: ast.ClassDef | ast.FunctionDef) -> dict[str, Any]:
    """A function's signature; a class's methods, and the names of its fields and attributes."""
    if isinstance(node, ast.FunctionDef):
        return {"signature": signature(node)}
    methods = {item.name: signature(item) for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}
    fields = [item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    constants = [target.id for item in node.body if isinstance(item, ast.Assign) for target in item.targets if isinstance(target, ast.Name)]
    return {"fields": fields, "attributes": sorted({*constants, *assigned(node)}), "methods": methods, "bases": [ast.unparse(base) for base in node.bases]}


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Any]:
    """Argument names without `self`; `required` of them have no default. Stars and decorators only where there are any."""
    arguments, decorators = node.args, [ast.unparse(item).split("(")[0].split(".")[-1] for item in node.decorator_list]
    positional = [item.arg for item in [*arguments.posonlyargs, *arguments.args]]
    if positional[:1] in (["self"], ["cls"]):
        positional = positional[1:]
    result: dict[str, Any] = {"args": positional, "required": max(0, len(positional) - len(arguments.defaults))}
    if arguments.kwonlyargs:
        result["keyword_only"] = [item.arg for item in arguments.kwonlyargs]
    if arguments.vararg or arguments.kwarg:
        result["stars"] = ("*" if arguments.vararg else "") + ("**" if arguments.kwarg else "")
    if decorators:
        result["decorators"] = decorators
    return result


def assigned(node: ast.ClassDef) -> Iterator[str]:
    """Names of `self.x = …` anywhere in a class."""
    for item in ast.walk(node):
        targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
        parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        for part in parts:
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                yield part.attr


def called_with(name: str, wanted: Mapping[str, Any], positional: int = 0, keywords: tuple[str, ...] = ()) -> Iterator[str]:
    """What does not fit when `name`, whose signature is `wanted`, is called with so many positional arguments and these keywords."""
    allowed, stars = [*wanted["args"], *wanted.get("keyword_only", [])], wanted.get("stars", "")
    if positional > len(wanted["args"]) and "*" not in stars.replace("**", ""):
        yield f"{name} takes {len(wanted['args'])} positional arguments, {positional} are given"
    if "**" not in stars:
        yield from (f"{name} has no argument {keyword}" for keyword in keywords if keyword not in allowed)
    yield from (f"{name} needs {argument}" for argument in wanted["args"][positional : wanted["required"]] if argument not in keywords)


def dump(catalogue: Mapping[str, Any]) -> str:
    """One symbol a line, in a fixed order: differences between versions read well."""
    lines = [f"{json.dumps(name)}: {json.dumps(catalogue[name], separators=(',', ':'))}" for name in sorted(catalogue)]
    return "{\n" + ",\n".join(lines) + "\n}"
