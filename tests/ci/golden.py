"""Writes the golden pipelines anew: python -m tests.ci.golden. What changed is read in the diff."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ci.pipeline import build, finish
from ci.selection import Request, choose
from ci.settings import read_settings
from matrix.loader import load
from tests.ci.tree import IMAGES, example_tree

FOLDER = Path(__file__).with_name("golden")
TIERS = ("pr", "nightly")


def generated(tier: str, root: Path) -> list[dict[str, Any]]:
    """The pipeline of a small tree of every kind of hardware, on images whose digests are made up: the real matrix changes too often to be read in a diff."""
    settings = read_settings()
    return finish(build(choose(load(root), Request(tier=tier, images=IMAGES), settings), settings), settings)


def main() -> None:
    import tempfile

    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = example_tree(Path(folder))
        for tier in TIERS:
            (FOLDER / f"{tier}.json").write_text(json.dumps(generated(tier, root), indent=1) + "\n")


if __name__ == "__main__":
    main()
