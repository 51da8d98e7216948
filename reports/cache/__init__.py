"""A cache of parsed curves: the same run is judged, drawn and compared many times, and its log may be gigabytes.

An entry belongs to a path, to what the caller said about the reading, and to the readers' code. It remembers every file and folder that was looked at, and is
used while they are the same: their stat (size, times, inode) says so at once, and where it says otherwise (a touched file, a fresh checkout) a hash of their
content does. Files that changed within the last two seconds are read and not kept: they may change again within one tick of their clock.
An entry that is torn, damaged or of another version is as good as none. Deleting the folder is always safe.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from reports.cache.entry import Entry, Signature, decode, encode
from reports.errors import ReportError
from reports.model import Run

if TYPE_CHECKING:
    from reports.readers.base import Reading
    from reports.readers.source import Source

SETTLED_NS = 2_000_000_000
CHUNK = 1 << 20
GONE = (-1, 0, 0, 0)


class CurveCache:
    """Entries under one folder, made when first needed."""

    def __init__(self, root: Path) -> None:
        if root.exists() and not root.is_dir():
            raise ReportError(f"--cache {root}: not a folder")
        self.root = root

    def read(self, source: Source, reading: Reading, parse: Callable[[], list[Run]]) -> list[Run]:
        """The runs at `source`: from the cache where it holds them as they are now, else by `parse`. What `parse` raises is raised, and not kept."""
        place = self.root / _name(source, reading)
        looked = time.time_ns()
        entry = _load(place)
        if entry is not None:
            signature = signature_of(path for path, *_ in entry.signature)
            if signature == entry.signature:
                return entry.runs
            if content_hash(signature) == entry.content and settled(signature, looked):
                _store(place, Entry(signature, entry.content, entry.runs))
                return entry.runs
        runs = parse()
        signature = signature_of(source.trace)
        if settled(signature, looked):
            content = content_hash(signature)
            if signature_of(source.trace) == signature:
                _store(place, Entry(signature, content, runs))
        return runs


def _name(source: Source, reading: Reading) -> str:
    names = sorted(reading.names.items())
    table = reading.table.read_bytes() if reading.table else b""
    said = repr((str(source.path.absolute()), reading.format, reading.step, names, code_version())).encode() + table
    digest = xxhash.xxh3_128_hexdigest(said)
    return f"{digest[:2]}/{digest[2:]}.curves"


def _load(place: Path) -> Entry | None:
    try:
        data = place.read_bytes()
    except OSError:
        return None
    return decode(data)


def _store(place: Path, entry: Entry) -> None:
    """Written beside its place and moved there: another process sees a whole entry or none."""
    try:
        data = encode(entry)
    except (OverflowError, TypeError, UnicodeEncodeError):
        return  # a manifest with a number of more than 64 bits, a name with half a character: read anew each time
    partial = place.with_name(f".{place.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(place)
    except OSError as error:  # read-only, or full: a cache saves time and no more
        _say_once(place.parent.parent, error.strerror or str(error))
        with suppress(OSError):
            partial.unlink()


@cache
def _say_once(root: Path, why: str) -> None:
    logging.getLogger(__name__).warning("--cache %s: cannot be written (%s): what is not in it is read anew each time", root, why)


def signature_of(paths: Iterable[str]) -> Signature:
    """(path, size, mtime in ns, ctime in ns, inode) of each; size -1 for what is not there."""
    return [(path, *_stat(path)) for path in paths]


def _stat(path: str) -> tuple[int, int, int, int]:
    try:
        info = os.stat(path)  # noqa: PTH116 - four thousand of them are looked at in one go
    except OSError:
        return GONE
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def settled(signature: Signature, looked_ns: int) -> bool:
    """Whether everything had rested when it was looked at: a change during or after the look then shows in its times."""
    return all(max(mtime, ctime) + SETTLED_NS < looked_ns for _, _, mtime, ctime, _ in signature)


def content_hash(signature: Signature) -> str:
    """xxh3 of the files' bytes and the folders' listings, with their names."""
    digest = xxhash.xxh3_128()
    for path, size, *_ in signature:
        digest.update(f"{path}\0".encode())
        if size < 0:
            digest.update(b"gone")
        elif stat.S_ISDIR(os.stat(path).st_mode):  # noqa: PTH116
            digest.update("\0".join(sorted(os.listdir(path))).encode())  # noqa: PTH208
        else:
            with Path(path).open("rb") as file:
                while part := file.read(CHUNK):
                    digest.update(part)
    return digest.hexdigest()


@cache
def code_version() -> str:
    """Hash of everything that turns files into runs: another version never gives its numbers for this one's."""
    root = Path(__file__).parent.parent
    digest = xxhash.xxh3_128()
    for file in sorted([*root.glob("readers/*.py"), *root.glob("readers/*.toml"), *root.glob("cache/*.py"), *(root / f"{n}.py" for n in CODE)]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


CODE = ("model", "facts", "metrics")
