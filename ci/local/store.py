"""What a build keeps: artifacts, meta-data, annotations. Everything is a file under the build's folder, so that a person and a test can look."""

from __future__ import annotations

import glob
import json
import re
import shutil
from pathlib import Path


class Store:
    def __init__(self, folder: Path):
        self.folder = folder
        self.artifacts = folder / "artifacts"
        self.annotations = folder / "annotations"
        self.artifacts.mkdir(parents=True, exist_ok=True)
        self.annotations.mkdir(exist_ok=True)
        self.meta: dict[str, str] = {}
        self.paths: dict[str, None] = {}  # of artifacts, relative to the checkout of the job that sent them

    def set(self, key: str, value: str) -> None:
        self.meta[key] = value
        (self.folder / "meta-data.json").write_text(json.dumps(self.meta, indent=1) + "\n")

    def send(self, pattern: str, cwd: Path) -> int:
        """Keep the files of a glob (`;` separates several); returns how many."""
        count = 0
        for part in filter(None, (part.strip() for part in pattern.split(";"))):
            for name in sorted(glob.glob(part, root_dir=cwd, recursive=True)):  # noqa: PTH207 - relative names
                if (cwd / name).is_file():
                    target = self.artifacts / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(cwd / name, target)
                    self.paths[name] = None
                    count += 1
        return count

    def fetch(self, pattern: str, into: Path) -> int:
        """Put the artifacts whose path matches a glob under `into`; returns how many."""
        wanted = _matcher(pattern)
        names = [name for name in self.paths if wanted.fullmatch(name)]
        for name in names:
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.artifacts / name, target)
        return len(names)

    def annotate(self, context: str, style: str, text: str, append: bool) -> None:
        """Raises ValueError above Buildkite's limit of 1 MiB."""
        file = self.annotations / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', context)}.md"
        whole = (file.read_text(encoding="utf-8") if append and file.exists() else "") + text
        if len(whole.encode()) > 1 << 20:
            raise ValueError(f"annotation {context} has {len(whole.encode())} bytes; 1 MiB is the limit")
        file.write_text(whole, encoding="utf-8")
        file.with_suffix(".style").write_text(style)


def _matcher(pattern: str) -> re.Pattern[str]:
    """`**` any folders, `*` a part of a name."""
    text = ""
    for part in re.split(r"(\*\*/|\*\*|\*)", pattern):
        text += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*"}.get(part, re.escape(part))
    return re.compile(text)
