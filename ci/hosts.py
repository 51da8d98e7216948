"""Which hosts lost runs: from the runners' records, and from what agents' hooks noted in the build (ci/agent/hooks/pre-exit)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOST = "vime:lost:"  # meta-data: + step key and attempt; the value is the host


def lost_runs(results: Path, noted: Iterable[str] = ()) -> dict[str, int]:
    """Runs lost to the machine by host, most first. A run counts once for each attempt that was lost; hooks tell of those whose record is gone."""
    found: Counter[str] = Counter()
    for file in sorted(results.glob("*/seed-*/runner.json")):
        record = _read(file)
        last = [record] if record.get("outcome") == "INFRA" else []
        for attempt in [*(record.get("earlier") or []), *last]:
            found[str(attempt.get("host") or record.get("host") or "an unknown host")] += 1
    told = Counter(noted)
    return dict(sorted({host: max(found[host], told[host]) for host in found | told}.items(), key=lambda item: (-item[1], item[0])))


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
