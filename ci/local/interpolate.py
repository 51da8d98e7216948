"""Variables in an uploaded pipeline, as `buildkite-agent pipeline upload` replaces them: $NAME, ${NAME}, ${NAME:-default}, ${NAME-default}, ${NAME:?message};
$$ and \\$ stand for a dollar sign."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PATTERN = re.compile(r"\\\$|\$\$|\$(?P<plain>[A-Za-z_][A-Za-z0-9_]*)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:(?P<how>:?[-?])(?P<rest>[^}]*))?\}")


def interpolated(value: Any, environment: Mapping[str, str]) -> Any:
    """`value` with every text of it interpolated. Raises ValueError for a `:?` whose variable is not set."""
    if isinstance(value, str):
        return PATTERN.sub(lambda match: _replaced(match, environment), value)
    if isinstance(value, dict):
        return {interpolated(key, environment): interpolated(item, environment) for key, item in value.items()}
    return [interpolated(item, environment) for item in value] if isinstance(value, list) else value


def _replaced(match: re.Match[str], environment: Mapping[str, str]) -> str:
    name = match["plain"] or match["name"]
    if name is None:
        return "$"
    found, how, rest = environment.get(name), match["how"] or "", match["rest"] or ""
    missing = found is None or (how.startswith(":") and not found)
    if not missing:
        return found or ""
    if how.endswith("?"):
        raise ValueError(f"${name}: {rest or 'not set'}")
    return rest if how.endswith("-") else ""
