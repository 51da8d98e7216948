"""How each family was checked: numbers measured by `python -m tests.models.measure`, kept beside this file for `vime models` and docs/models.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("checked.json")


def read() -> dict[str, dict[str, Any]]:
    """Case name → what was measured (see docs/models.md)."""
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.is_file() else {}


def write(name: str, record: dict[str, Any]) -> None:
    """Add to a case; what was not measured again stays, an engine's result replaces its error and the other way round."""
    records = read()
    kept = records.get(name, {})
    if "engine_error" in record or "synced_mean" in record:
        kept = {key: value for key, value in kept.items() if key not in ENGINE}
    records[name] = {**kept, **record}
    FILE.write_text(json.dumps(dict(sorted(records.items())), indent=1, default=float) + "\n", encoding="utf-8")


ENGINE = ("engine_error", "loaded_mean", "loaded_max", "synced_mean", "synced_max", "moved", "held")
