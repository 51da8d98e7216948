"""Reward names to functions. A name is one of ours, one an installed package registers (entry points `vime.rewards`), or `package.module:function`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from vime.errors import UserError

Reward = Callable[..., Any]

BUILTIN: dict[str, str] = {
    "exact_match": "vime.rewards.exact:exact_match",
    "math": "vime.rewards.math:math",
    "reasoning_gym": "vime.rewards.gym:reasoning_gym",
}
ENTRY_POINTS = "vime.rewards"

# What a reward function may ask for by parameter name, besides (text, label, metadata) and its own arguments.
CONTEXT = ("finish_reason", "prompt", "response_ids")


def resolve(name: str) -> Reward:
    """The function of a reward name. Raises `UserError` naming what is missing."""
    return _import(name, _target(name))


def _target(name: str) -> str:
    if ":" in name:
        return name
    plugins = {p.name: p.value for p in entry_points(group=ENTRY_POINTS)}
    known = {**plugins, **BUILTIN}
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"reward.name: no reward {name!r}; {hint}rewards are {', '.join(sorted(known))}, or package.module:function for your own")
    return known[name]


def _import(name: str, target: str) -> Reward:
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise UserError(f"reward.name: {name!r} is not of the form package.module:function")
    # A command installed as a script does not have the working directory on its path; a user's rewards.py lies there.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"reward.name {name!r}: no module {error.name!r}; looked in {here} and the installed packages") from None
    except Exception as error:  # noqa: BLE001  a user's module may raise anything while it is imported
        raise UserError(f"reward.name {name!r}: importing {module_name} fails: {type(error).__name__}: {error}") from None
    function: Any = module
    for part in attribute.split("."):
        if not hasattr(function, part):
            raise UserError(f"reward.name {name!r}: {module_name} has no {attribute!r}; it has {_functions(module)}")
        function = getattr(function, part)
    return _checked(name, function)


def _checked(name: str, function: Any) -> Reward:
    if not callable(function):
        raise UserError(f"reward.name {name!r}: it is a {type(function).__name__}, not a function")
    if inspect.iscoroutinefunction(function):
        raise UserError(f"reward.name {name!r}: it is an async function; a reward is called in a worker process and must be a plain one")
    return function


def _functions(module: Any) -> str:
    names = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__ and not n.startswith("_")]
    return ", ".join(names) or "no functions"


def wanted_context(name: str, function: Reward, args: Mapping[str, Any]) -> tuple[str, ...]:
    """The context names the function's parameters ask for. Raises `UserError` when it cannot be called with (text, label, metadata), those and `args`."""
    if clash := sorted(set(args) & set(CONTEXT)):
        raise UserError(f"reward.args.{clash[0]}: the pool gives it to the function itself")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a C function has no signature; it gets the three positional arguments
        return ()
    wanted = tuple(c for c in CONTEXT if c in signature.parameters)
    try:
        signature.bind("", None, {}, **dict.fromkeys(wanted), **args)
    except TypeError as error:
        raise UserError(f"reward.args: {name!r} cannot be called as f(text, label, metadata, **reward.args): {error}; its signature is {signature}") from None
    return wanted
