"""What a pipeline must be before it is uploaded: Buildkite's schema, and the rules that its schema cannot say."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from ci.keys import KEY

SECRET = re.compile(r"(?i)(token|secret|passw|credential|api_?key|private_?key)")
DEVICE_VARIABLE = re.compile(r".*_VISIBLE_DEVICES$")


class PipelineError(Exception):
    """A pipeline that must not be uploaded; the message names the step."""

    exit_code = 1


def check(pipeline: dict[str, Any], known: set[str] | None) -> None:
    """Raises PipelineError for the first fault. `known`: keys that are there before it; None: dependencies are not looked at (a part of a pipeline)."""
    _schema(pipeline)
    from ci.pipeline import flat, keys_of

    steps = flat(pipeline)
    doubled = [key for key, count in Counter(keys_of(pipeline)).items() if count > 1]
    if doubled:
        raise PipelineError(f"two steps have the key {doubled[0]}: a second upload would be refused")
    for step in steps:
        _step(step)
    if known is not None:
        _dependencies(steps, set(known))


@lru_cache(maxsize=1)
def _validator() -> Any:
    from importlib import resources

    from jsonschema import Draft7Validator

    schema = json.loads(resources.files("buildkite_sdk").joinpath("schema.json").read_text(encoding="utf-8"))
    return Draft7Validator(schema), schema


def _schema(pipeline: dict[str, Any]) -> None:
    """Held to the schema step by step, so that the message is about the step and not about all kinds that it is not."""
    validator, schema = _validator()
    if not pipeline.get("steps"):
        raise PipelineError("the pipeline has no steps")
    if validator.is_valid(pipeline):
        return
    for step in pipeline["steps"]:
        for inner in step["steps"] if isinstance(step, dict) and "group" in step else [step]:
            _step_schema(inner, validator, schema)
    error = next(validator.iter_errors(pipeline))
    raise PipelineError(f"not a pipeline: {'/'.join(str(part) for part in error.absolute_path)}: {error.message[:300]}")


def _step_schema(step: Any, validator: Any, schema: dict[str, Any]) -> None:
    if not isinstance(step, dict):
        return
    kind = next((kind for name, kind in (("block", "blockStep"), ("wait", "waitStep")) if name in step), "commandStep")
    held = validator.evolve(schema={**schema["definitions"][kind], "definitions": schema["definitions"]})
    error = next(held.iter_errors(step), None)
    if error is not None:
        at = "/".join(str(part) for part in error.absolute_path)
        raise PipelineError(f"step {step.get('key') or step.get('label')}: {at + ': ' if at else ''}{error.message[:300]}")


def _step(step: dict[str, Any]) -> None:
    name = step.get("key") or step.get("label") or step.get("group") or "a step"
    if "\\$" in "\0".join(_texts({**step, "steps": None})):
        raise PipelineError(f"step {name}: a backslash before a dollar sign does not survive an upload: write it in another way")
    key = step.get("key")
    if key is not None and not KEY.fullmatch(str(key)):
        raise PipelineError(f"step {key}: the key has characters that would be interpolated or refused")
    if ("concurrency" in step) != ("concurrency_group" in step):
        raise PipelineError(f"step {name}: concurrency and concurrency_group go together")
    environment = step.get("env") or {}
    for variable, value in environment.items():
        if SECRET.search(variable):
            raise PipelineError(f"step {name}: {variable} is set in the pipeline, for everybody to read: name the secret under secrets:")
        if DEVICE_VARIABLE.fullmatch(variable):
            _devices(name, variable, str(value), step)


def _texts(value: Any) -> Iterator[str]:
    """Every text of a step. Keys of a mapping are names of variables or of attributes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _devices(name: str, variable: str, value: str, step: dict[str, Any]) -> None:
    """As many devices as the agent's class has: one more, and the step takes another job's."""
    shown = value.split(",")
    asked = (step.get("agents") or {}).get("devices")
    if len(set(shown)) != len(shown) or str(len(shown)) != asked or (step.get("env") or {}).get("VIME_DEVICES") != asked:
        raise PipelineError(f"step {name}: {variable}={value} names {len(shown)} devices, its agents have class {asked}: the two must agree")


def _dependencies(steps: Iterable[dict[str, Any]], before: set[str]) -> None:
    """What a step depends on stands before it."""
    for step in steps:
        for wanted in needs(step):
            if wanted not in before:
                raise PipelineError(f"step {step.get('key')}: depends on {wanted}, which no step before it has for a key")
        if step.get("key"):
            before.add(str(step["key"]))


def needs(step: dict[str, Any]) -> list[str]:
    """Keys that a step depends on."""
    told = step.get("depends_on") or []
    return [str(item["step"] if isinstance(item, dict) else item) for item in ([told] if isinstance(told, str) else told)]
