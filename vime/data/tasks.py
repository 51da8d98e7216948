"""Tasks: endless streams of prompts with reference answers, each a pure function of (seed, task arguments).

A stream's first n prompts do not depend on how many are drawn, so a larger pool begins with the smaller one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from vime.data.sample import RawPrompt
from vime.errors import UserError

Task = Callable[[int, Mapping[str, Any]], Iterator[RawPrompt]]

GYM_PREFIX = "rg:"
GYM_BLOCK = 1000  # prompts a reasoning-gym dataset object makes before the next one, with its own seed, takes over
GYM_KEY = "reasoning_gym"  # metadata: what the dataset's own scorer needs

# Datasets of reasoning-gym 0.1.25 that draw from sets of strings, so from the order of Python's string hashes, which differs from process to process.
HASH_ORDERED = frozenset(
    {
        "codeio",
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "list_functions",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)

_TASKS: dict[str, Task] = {}


def register_task(name: str) -> Callable[[Task], Task]:
    """Decorator: make a stream available as `data.task: <name>`."""

    def add(task: Task) -> Task:
        if name in _TASKS:
            raise ValueError(f"task {name!r} is registered already")
        _TASKS[name] = task
        return task

    return add


def task_stream(name: str, seed: int, args: Mapping[str, Any]) -> Iterator[RawPrompt]:
    """The prompts of a task. Raises `UserError` for an unknown name or argument, naming those that exist."""
    if name.startswith(GYM_PREFIX):
        return _gym_prompts(name.removeprefix(GYM_PREFIX), seed, args)
    if name not in _TASKS:
        near = get_close_matches(name, _TASKS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"data.task: no task {name!r}; {hint}tasks are {', '.join(sorted(_TASKS))}, and rg:<dataset> for any dataset of reasoning-gym")
    return _TASKS[name](seed, args)


@register_task("spell_backward")
def spell_backward(seed: int, args: Mapping[str, Any]) -> Iterator[RawPrompt]:
    """A word of 3 to 5 letters, lower case, as `word=`; the answer is the word reversed. Arguments: those of reasoning-gym's spell_backward."""
    for entry, raw in _gym_entries("spell_backward", seed, {"min_word_len": 3, "max_word_len": 5, **args}):
        word = entry["metadata"]["word"].lower()
        yield dataclasses.replace(raw, prompt=f"{word}=", label=word[::-1])


@register_task("chain_sum")
def chain_sum(seed: int, args: Mapping[str, Any]) -> Iterator[RawPrompt]:
    """A sum or difference as `12+5-3=`; the answer is its value. Arguments: those of reasoning-gym's chain_sum."""
    defaults = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    for entry, raw in _gym_entries("chain_sum", seed, {**defaults, **args}):
        yield dataclasses.replace(raw, prompt=entry["metadata"]["expression"].replace(" ", "") + "=")


def _gym_prompts(name: str, seed: int, args: Mapping[str, Any]) -> Iterator[RawPrompt]:
    return (raw for _, raw in _gym_entries(name, seed, args))


def _gym_entries(name: str, seed: int, args: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], RawPrompt]]:
    _check_gym(name, args)
    return _gym_blocks(name, seed, args)


def _gym_blocks(name: str, seed: int, args: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], RawPrompt]]:
    numbers = itertools.count()
    for block in itertools.count():
        dataset = gym_dataset(name, {**args, "seed": _gym_seed(name, seed, block), "size": GYM_BLOCK})
        for i in range(len(dataset)):
            entry = dataset[i]
            metadata = {GYM_KEY: {"dataset": name, "args": dict(args), "entry": entry}}
            yield entry, RawPrompt(entry["question"], entry["answer"], metadata, f"task {name}, item {next(numbers)}")


def _gym_seed(name: str, seed: int, block: int) -> int:
    """reasoning-gym draws item i of seed s from s + i, so neighbouring seeds give the same items shifted; a hash keeps ours apart."""
    return int.from_bytes(hashlib.blake2b(f"{name}/{seed}/{block}".encode(), digest_size=8).digest()) >> 33


def gym_dataset(name: str, args: Mapping[str, Any]) -> Any:
    """A reasoning-gym dataset object; `UserError` when it refuses its arguments. `composite` takes its datasets as {name, weight, config}."""
    import reasoning_gym
    from reasoning_gym.composite import DatasetSpec

    try:
        specs = {"datasets": [DatasetSpec(**spec) for spec in args.get("datasets") or ()]} if name == "composite" else {}
        return reasoning_gym.create_dataset(name, **{**args, **specs})
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"data.task_args: reasoning-gym's {name} refuses {dict(args)}: {error}") from None


def _check_gym(name: str, args: Mapping[str, Any]) -> None:
    import reasoning_gym.factory

    known = reasoning_gym.factory.DATASETS
    if name not in known:
        near = get_close_matches(name, known, n=3)
        raise UserError(f"data.task: reasoning-gym has no dataset {name!r}; nearest are {', '.join(near) or 'none'} of {len(known)}")
    fields = {f.name for f in dataclasses.fields(known[name][1])} - {"seed", "size"}
    _check_hash_order({name, *(spec.get("name") for spec in args.get("datasets") or ())} if name == "composite" else {name})
    for key in args:
        if key in ("seed", "size"):
            raise UserError(f"data.task_args.{key}: set data.{key} instead")
        if key not in fields:
            raise UserError(f"data.task_args.{key}: reasoning-gym's {name} has no such argument; it takes {', '.join(sorted(fields))}")


def _check_hash_order(names: set[Any]) -> None:
    if (drawn := sorted(names & HASH_ORDERED)) and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise UserError(
            f"data.task: reasoning-gym's {drawn[0]} draws in the order of Python's string hashes, so its prompts would differ in every process and no run "
            "could be resumed or compared; start with PYTHONHASHSEED=0 in the environment, or write its prompts to a file once"
        )
