"""What a twin promises: the model's structure in every flag, and each size or ratio that deviates listed with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from matrix.declarations import Twin
from matrix.yaml_file import Path_

# Keys that name tokens, a file format or a default precision: they belong to a checkpoint, not to the architecture.
OF_THE_CHECKPOINT = frozenset({"bos_token_id", "eos_token_id", "pad_token_id", "torch_dtype", "dtype", "transformers_version", "use_cache"})
TOLERANCE = 5e-3  # relative: the declared numbers are rounded


def twin_faults(architecture: Mapping[str, Any], twin: Twin) -> Iterator[tuple[Path_, str]]:
    """(path below `twin`, message) for every deviation that is not listed and every listed one that is not true."""
    architecture, config = flat(architecture), flat(twin.config)
    mentioned: set[str] = set()
    for index, deviation in enumerate(twin.deviations):
        at: Path_ = ("deviations", index)
        mentioned |= _names(deviation.ratio)
        for side, side_config, declared in (("model", architecture, deviation.model), ("twin", config, deviation.twin)):
            try:
                value = evaluate(deviation.ratio, side_config)
            except ValueError as error:
                yield (*at, "ratio"), f"{deviation.ratio}: {error}"
                break
            if abs(value - declared) > TOLERANCE * abs(value):
                yield (*at, side), f"{deviation.ratio} of the {side} is {value:.4g}, not {declared:g}: write {value:.4g}"
        if deviation.model == deviation.twin:
            yield (*at, "ratio"), f"{deviation.ratio} does not deviate ({deviation.model:g} on both sides): list it under keeps"
    for index, ratio in enumerate(twin.keeps):
        mentioned |= _names(ratio)
        yield from _kept(("keeps", index), ratio, architecture, config)
    yield from _unlisted(architecture, config, mentioned)


def _kept(at: Path_, ratio: str, architecture: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[Path_, str]]:
    try:
        model, twin = evaluate(ratio, architecture), evaluate(ratio, config)
    except ValueError as error:
        yield at, f"{ratio}: {error}"
        return
    if abs(model - twin) > TOLERANCE * abs(model):
        yield at, f"{ratio} is {model:.4g} in the model and {twin:.4g} in the twin: list it under deviations with a reason"


def _unlisted(architecture: Mapping[str, Any], config: Mapping[str, Any], mentioned: set[str]) -> Iterator[tuple[Path_, str]]:
    for name in sorted({*architecture, *config} - mentioned):
        if name.rpartition(".")[2] in OF_THE_CHECKPOINT or name.endswith("_token_id"):
            continue
        ours, theirs = config.get(name), architecture.get(name)
        if ours != theirs:
            said = "missing" if name not in config else repr(ours)
            yield (
                ("config", *name.split(".")),
                f"{name} is {theirs!r} in the model and {said} in the twin: make them equal, or list the deviation with its reason",
            )


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A config.json with the keys of inner configs (`text_config`, `vision_config`, `rope_parameters`) joined by dots."""
    out: dict[str, Any] = {}
    for name, value in config.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return out


def _names(expression: str) -> set[str]:
    try:
        return {name for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.expr) and (name := _dotted(node))}
    except SyntaxError:
        return set()


def _dotted(node: ast.expr) -> str | None:
    """The key that a name or a dotted name stands for."""
    if isinstance(node, ast.Name):
        return node.id
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else None
    return f"{inner}.{node.attr}" if inner and isinstance(node, ast.Attribute) else None


def evaluate(expression: str, config: Mapping[str, Any]) -> float:
    """The value of a product or quotient of config keys (`text_config.hidden_size` for an inner one, `len(key)` for a list).

    Raises ValueError for anything else and for keys that are absent or no numbers.
    """
    try:
        return _evaluate(ast.parse(expression, mode="eval").body, config)
    except SyntaxError:
        raise ValueError("not a product or quotient of config keys") from None
    except ZeroDivisionError:
        raise ValueError("divides by zero") from None


def _evaluate(node: ast.expr, config: Mapping[str, Any]) -> float:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        left, right = _evaluate(node.left, config), _evaluate(node.right, config)
        return left * right if isinstance(node.op, ast.Mult) else left / right
    if isinstance(node, ast.Call) and _dotted(node.func) == "len" and len(node.args) == 1:
        value = config.get(_dotted(node.args[0]) or "")
        if not isinstance(value, list):
            raise ValueError(f"'{ast.unparse(node.args[0])}' is {value!r}, not a list")
        return float(len(value))
    if name := _dotted(node):
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"'{name}' is {value!r}, not a number")
        return float(value)
    raise ValueError("not a product or quotient of config keys")
