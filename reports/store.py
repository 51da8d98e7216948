"""Large files of a baseline outside git: on any fsspec root, each under its own sha256, which stands in baseline.json and so in git.

<root>/sha256/<first two digits>/<digest>
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict

from reports.errors import ReportError
from reports.model import Run
from reports.readers.source import Source

CHUNK = 1 << 20
# What a run's folder holds that a verdict or a person may want again. Checkpoints and engine logs are no evidence of a curve.
KEPT_NAMES = ("config.yaml", "manifest.json", "metrics.jsonl", "events.jsonl", "runner.json", "trainer_state.json", "meta.yaml")
KEPT_FOLDERS = ("samples", "metrics", "logs")


class Blob(BaseModel):
    """One file of a run: its place in the run's folder, its content by hash, its size in bytes."""

    model_config = ConfigDict(extra="forbid")

    run: str
    path: str
    sha256: str
    size: int


def files_of(run: Run) -> Iterator[tuple[str, Source]]:
    """(path inside the run, file) of everything of it that is kept: the one file, or the known parts of a folder."""
    source = Source(run.url or run.path)
    if not source.is_dir:
        yield source.name, source
        return
    for child in source.children():
        if child.is_dir:
            if child.name in KEPT_FOLDERS:
                yield from _below(child, child.name)
        elif child.name in KEPT_NAMES or ".tfevents." in child.name:
            yield child.name, child


def _below(folder: Source, prefix: str) -> Iterator[tuple[str, Source]]:
    for child in folder.children():
        name = f"{prefix}/{child.name}"
        if child.is_dir:
            yield from _below(child, name)
        else:
            yield name, child


def put(root: str, runs: Sequence[tuple[str, Run]]) -> list[Blob]:
    """Store every file of the runs (name in the baseline, run) under `root` and say what was stored. A file that is there already is not sent again."""
    fs, base = _root(root)
    blobs = []
    for name, run in runs:
        for path, source in files_of(run):
            digest, size = digest_of(source)
            blobs.append(Blob(run=name, path=path, sha256=digest, size=size))
            target = _place(base, digest)
            if not fs.exists(target) or fs.size(target) != size:
                _send(fs, source, target)
    return blobs


def get(root: str, blobs: Sequence[Blob], into: Path) -> list[Path]:
    """Fetch files to <into>/<run>/<path>. Raises ReportError for one that is not there or does not match its hash; nothing of it is left then."""
    fs, base = _root(root)
    written = []
    for blob in blobs:
        target = into / blob.run / blob.path
        if not target.resolve().is_relative_to(into.resolve()):
            raise ReportError(f"{blob.run}/{blob.path}: lies outside the folder it is fetched to")
        place = _place(base, blob.sha256)
        if not fs.exists(place):
            raise ReportError(f"{root}: holds no {blob.sha256[:12]} ({blob.run}/{blob.path})")
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        with fs.open(place, "rb") as source, partial.open("wb") as out:
            digest = _copy(source, out)
        if digest != blob.sha256:
            partial.unlink()
            raise ReportError(f"{root}: {blob.run}/{blob.path} does not match its hash {blob.sha256[:12]}: it was changed in the store")
        partial.replace(target)
        written.append(target)
    return written


def digest_of(source: Source) -> tuple[str, int]:
    """(sha256, size in bytes) of a file as it lies, compressed or not."""
    digest, size = hashlib.sha256(), 0
    with source.open_raw() as file:
        while part := file.read(CHUNK):
            digest.update(part)
            size += len(part)
    return digest.hexdigest(), size


def _root(root: str) -> tuple[Any, str]:
    import fsspec

    try:
        fs, base = fsspec.core.url_to_fs(root)
    except (ImportError, ValueError) as error:
        raise ReportError(f"{root}: {error}") from None
    return fs, str(base).rstrip("/")


def _place(base: str, digest: str) -> str:
    return f"{base}/sha256/{digest[:2]}/{digest}"


def _send(fs: Any, source: Source, target: str) -> None:
    """Written beside its place and moved there, so that a store never holds half a file under a whole one's hash."""
    fs.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH120 - a path of the store, not of this machine
    partial = f"{target}.partial"
    with source.open_raw() as file, fs.open(partial, "wb") as out:
        shutil.copyfileobj(file, out, CHUNK)
    fs.mv(partial, target)


def _copy(source: IO[bytes], out: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while part := source.read(CHUNK):
        digest.update(part)
        out.write(part)
    return digest.hexdigest()
