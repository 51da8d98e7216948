"""Where the bytes of a run come from: a local path or any fsspec URL, plain, gzip or zstd, in the encodings that logs are written in."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from reports.errors import ReportError, UnreadableRun
from reports.model import Note, NoteKind, printable
from reports.readers.json_text import json_value
from reports.readers.notes import Notes

HEAD_BYTES = 65536  # how much of a file a reader may look at to recognise it
BUFFER = 1 << 20
DAMAGED = (EOFError, OSError, zlib.error)  # what decompressing raises
_CUT_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+):/(?!/)")  # a URL that was made a Path has lost a slash
LONGEST_LINE = 1 << 26  # characters; a longer line is no record, and must not fill the memory
LARGEST_DOCUMENT = 1 << 29  # bytes of one JSON document (a stream of lines has no limit)
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


class _Zstd(io.RawIOBase):
    """zstd frames one behind the other, as bytes; damage is an OSError, as gzip's is."""

    def __init__(self, raw: IO[bytes]) -> None:
        import zstandard

        self._raw, self._error = raw, zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._stream.readinto(buffer))
        except self._error as error:
            raise OSError(str(error)) from None

    def close(self) -> None:
        self._raw.close()
        super().close()


class Source:
    """One file or folder. Cheap until asked: nothing is opened by making one. Raises ReportError where the place does not exist."""

    def __init__(self, where: Path | str, trace: dict[str, None] | None = None) -> None:
        self.url = _CUT_SCHEME.sub(_whole_scheme, str(where)) if isinstance(where, Path) and not where.exists() else str(where)
        self.trace: dict[str, None] = {} if trace is None else trace  # every place that was looked at, through this or its children
        self._fs: Any = None
        if "://" in self.url:
            self._fs, inner = _file_system(self.url)
            self.path = Path(inner)
        else:
            self.path = Path(where)
        self.trace[str(self.path)] = None
        if not self.exists:
            raise ReportError(f"{self.url}: no such file or directory")
        if not self._fs and not (self.path.is_file() or self.path.is_dir()):
            raise ReportError(f"{self.url}: a pipe or a device: write it to a file first, it is read more than once")

    @property
    def remote(self) -> bool:
        return self._fs is not None

    @property
    def name(self) -> str:
        return printable(self.path.name)

    @property
    def exists(self) -> bool:
        return bool(self._fs.exists(str(self.path))) if self._fs else self.path.exists()

    @cached_property
    def is_dir(self) -> bool:
        return bool(self._fs.isdir(str(self.path))) if self._fs else self.path.is_dir()

    def child(self, name: str) -> Source | None:
        """The file or folder of that name inside this folder, or None."""
        try:
            return Source(f"{self.url.rstrip('/')}/{name}" if self._fs else self.path / name, self.trace)
        except ReportError:
            return None

    def children(self) -> list[Source]:
        """Everything in this folder, by name."""
        if not self._fs:
            return [Source(path, self.trace) for path in sorted(self.path.iterdir()) if path.is_file() or path.is_dir()]
        base = self.url.rstrip("/")
        names = sorted(Path(str(entry)).name for entry in self._fs.ls(str(self.path), detail=False))
        return [Source(f"{base}/{name}", self.trace) for name in names if name and name != self.path.name]

    def open_raw(self) -> IO[bytes]:
        try:
            opened: IO[bytes] = self._fs.open(str(self.path), "rb") if self._fs else self.path.open("rb")
        except OSError as error:
            raise UnreadableRun(self.path, f"cannot be opened ({error.strerror or error})") from None
        return opened

    def open(self) -> IO[bytes]:
        """The content as bytes, decompressed."""
        raw = self.open_raw()
        magic = raw.read(4)
        raw.seek(0)
        if magic[:2] == GZIP:
            return gzip.open(raw, "rb")  # type: ignore[return-value]
        if magic == ZSTD:
            return io.BufferedReader(_Zstd(raw), BUFFER)
        return raw

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB, decompressed; empty for a folder and for a file that holds nothing."""
        if self.is_dir:
            return b""
        with self.open() as file:
            try:
                return _read_upto(file, HEAD_BYTES)
            except DAMAGED as error:
                raise UnreadableRun(self.path, f"the compressed file is damaged ({error})") from None

    @cached_property
    def encoding(self) -> str:
        """By byte order mark, else by the zero bytes UTF-16 has, else UTF-8 where the head is valid UTF-8, else GB18030 (of which GBK is a part)."""
        for mark, name in BOMS:
            if self.head.startswith(mark):
                return name
        return _utf16(self.head) or next((name for name in ("utf-8", "gb18030") if _decodes(self.head, name)), "utf-8")

    @cached_property
    def head_text(self) -> str:
        return codecs.getincrementaldecoder(self.encoding)("replace").decode(self.head).lstrip("\ufeff")

    def lines(self, notes: Notes) -> Iterator[tuple[int, str, bool]]:
        """(line number, text without its line end, whether there was one) of every line, streamed."""
        number, cut = 0, False
        if self.encoding == "gb18030":
            notes.add(NoteKind.ENCODING, "not UTF-8: read as GB18030 (GBK)", self.name)
        with self.open() as raw, io.TextIOWrapper(raw, self.encoding, "replace", newline="\n") as stream:
            while True:
                try:
                    text = stream.readline(LONGEST_LINE)
                except DAMAGED as error:
                    notes.add(NoteKind.TORN_LINE, f"the compressed file ends early ({error})", self.name)
                    return
                if not text:
                    return
                ended = text.endswith("\n")
                number += not cut
                if not ended and len(text) >= LONGEST_LINE:
                    if not cut:
                        notes.add(NoteKind.BROKEN_LINE, f"longer than {LONGEST_LINE} characters", f"{self.name}:{number}")
                    cut = True
                    continue
                if not cut:
                    if not text.isascii() and "\ufffd" in text:
                        notes.add(NoteKind.ENCODING, f"bytes that are no {self.encoding}", f"{self.name}:{number}")
                    yield number, text.rstrip("\r\n") if ended else text, ended
                cut = False

    @cached_property
    def document(self) -> Any:
        """The whole file as one JSON value, or None where it is none (a stream of JSON lines is none). A doubled key raises UnreadableRun."""
        start = self.head_text.lstrip()[:1]
        if self.is_dir or start not in ("{", "[") or _is_lines(self.head_text):
            return None
        with self.open() as file:
            try:
                data = _read_upto(file, LARGEST_DOCUMENT + 1)
            except DAMAGED:
                return None
        if len(data) > LARGEST_DOCUMENT:
            return None
        try:
            return json_value(data.decode(self.encoding).lstrip("\ufeff"), self._unique)
        except (ValueError, RecursionError):
            return None

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise UnreadableRun(self.path, f"key {twice!r} occurs twice in one object: which value holds is not known")
        return found


def _whole_scheme(cut: re.Match[str]) -> str:
    return f"{cut[1]}:///" if cut[1] in ("file", "local") else f"{cut[1]}://"


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        fs, inner = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ReportError(f"{url}: {error}") from None
    return fs, str(inner)


def _read_upto(file: IO[bytes], size: int) -> bytes:
    """As much as there is of `size` bytes. Raises one of DAMAGED where nothing at all can be read."""
    parts: list[bytes] = []
    while size > 0:
        try:
            part = file.read(min(size, BUFFER))
        except DAMAGED:
            if not parts:
                raise
            break
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)("strict").decode(data)
    except UnicodeDecodeError:
        return False
    return True


def _utf16(head: bytes) -> str | None:
    """UTF-16 without a byte order mark: mostly ASCII text has a zero in every second byte and none in the others."""
    even, odd = head[0::2].count(0), head[1::2].count(0)
    half = max(len(head) // 2, 1)
    if odd > 0.4 * half and even < 0.05 * half:
        return "utf-16-le"
    return "utf-16-be" if even > 0.4 * half and odd < 0.05 * half else None


def _is_lines(head: str) -> bool:
    """Whether one of the first lines is a JSON object by itself with more behind it."""
    lines = head.splitlines()
    for number, line in enumerate(lines[:6]):
        if line.strip().startswith("{") and line.strip().endswith("}"):
            try:
                json.loads(line)
            except ValueError:
                continue
            return any(rest.strip() for rest in (*lines[:number], *lines[number + 1 :]))
    return False


__all__ = ["HEAD_BYTES", "Note", "Source"]
