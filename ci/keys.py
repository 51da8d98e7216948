"""Keys of steps: made of cell keys alone, so that generating a pipeline again gives the same ones; no two steps share one."""

from __future__ import annotations

import hashlib
import re

MAX = 100  # Buildkite's limit
KEY = re.compile(r"[a-zA-Z0-9_.:,-]+")  # of what Buildkite allows, the characters we use
UPLOADER = "pipeline"  # key of the step that uploads the pipeline; every pipeline of ours is uploaded by a step of that key


def run_key(cell_key: str, seed: int) -> str:
    """The step that makes one run."""
    return _fitted("run", cell_key, str(seed))


def judge_key(cell_key: str, look: int) -> str:
    """The step that looks at a cell's runs for the `look`-th time (from 1)."""
    return _fitted("judge", cell_key, str(look))


def collect_key(scope: str, round_: int) -> str:
    """The step that waits for all looks of a round and uploads the next such step, or report and gate."""
    return ":".join(filter(None, ("collect", scope, str(round_))))


def scoped(name: str, scope: str) -> str:
    """`gate`, or `gate:released` for the cells that a person released."""
    return f"{name}:{scope}" if scope else name


def _fitted(kind: str, cell_key: str, last: str) -> str:
    """`<kind>:<cell key>:<last>`; where that is too long the cell key's end gives way to a hash of all of it. No cell key holds a colon, so keys stay apart."""
    key = f"{kind}:{cell_key}:{last}"
    if len(key) <= MAX:
        return key
    digest = hashlib.sha256(cell_key.encode()).hexdigest()[:16]
    room = MAX - len(f"{kind}:,{digest}:{last}")
    return f"{kind}:{cell_key[:room]},{digest}:{last}"  # no cell key holds a comma
