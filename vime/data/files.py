"""Prompts from JSONL and Parquet files, row by row. Every defect of a file is an error that says where it is and how to mend it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vime.config.tree import DataConfig
from vime.data.sample import RawPrompt
from vime.errors import UserError

SNIPPET = 80  # characters of a bad line that are shown
PARQUET_BATCH = 1024  # rows read at a time


def read_prompts(path: str | Path, data: DataConfig) -> Iterator[RawPrompt]:
    """The prompts of a .jsonl or .parquet file, one a row. Field names may be dotted (`reward_model.ground_truth`) to reach into nested objects."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"data.path: no file at {path}; give the path of a .jsonl or .parquet file")
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(f"data.path: {path} ends in {path.suffix!r}; prompt files are .jsonl (one JSON object a line) or .parquet")
    rows = _jsonl_rows(path) if path.suffix == ".jsonl" else _parquet_rows(path, data)
    for place, row in rows:
        yield _raw_prompt(place, row, data, path)


def _jsonl_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    place = f"{path}:{number}"
                    yield place, _json_object(place, line, first=number == 1)
    except OSError as error:
        raise UserError(f"data.path: cannot read {path}: {error.strerror}") from None


def _json_object(place: str, line: bytes, first: bool) -> dict[str, Any]:
    try:
        text = line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        shown = line[max(0, error.start - 10) : error.start + 10]
        raise UserError(f"{place}: not UTF-8 at byte {error.start} ({shown!r}); save the file as UTF-8") from None
    try:
        row = json.loads(text.rstrip("\r\n"))
    except (json.JSONDecodeError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deep"
        raise UserError(f"{place}: not JSON ({reason}): {_snippet(text)}; each line must be one whole JSON object") from None
    if not isinstance(row, dict):
        raise UserError(f"{place}: a {type(row).__name__}, not a JSON object: {_snippet(text)}; each line must be one object with named fields")
    return row


def _parquet_rows(path: Path, data: DataConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            columns = _parquet_columns(path, file.schema_arrow.names, data)
            for batch in file.iter_batches(batch_size=PARQUET_BATCH, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"data.path: cannot read {path} as Parquet after row {number}: {str(error).splitlines()[0]}; write the file again") from None


def _parquet_columns(path: Path, names: list[str], data: DataConfig) -> list[str]:
    """The columns to read. A column's own name may hold a dot; it wins over a path into a nested column."""
    wanted = []
    for key, field in _fields(data):
        column = field if field in names else field.split(".")[0]
        if column not in names:
            raise UserError(f"{path}: no column {field!r} ({key}); it has {_listed(names)}: set {key} to one of them")
        wanted.append(column)
    return sorted(set(wanted))


def _fields(data: DataConfig) -> list[tuple[str, str]]:
    fields = [("data.prompt_field", data.prompt_field), ("data.label_field", data.label_field)]
    more = (("data.metadata_field", data.metadata_field), ("data.images_field", data.images_field))
    return [*fields, *((key, field) for key, field in more if field)]


def _raw_prompt(place: str, row: dict[str, Any], data: DataConfig, path: Path) -> RawPrompt:
    values = {key: _field(place, row, key, field) for key, field in _fields(data)}
    prompt, metadata = values["data.prompt_field"], values.get("data.metadata_field") or {}
    if values["data.label_field"] is None:
        raise UserError(f"{place}: field {data.label_field!r} is null; every prompt needs a reference answer")
    if not isinstance(metadata, dict):
        raise UserError(f"{place}: field {data.metadata_field!r} is a {type(metadata).__name__}, not an object; metadata needs named values")
    _check_prompt(place, prompt, data)
    images = _images(place, values["data.images_field"], data, path) if data.images_field else ()
    return RawPrompt(prompt, values["data.label_field"], metadata, place, images)


def _images(place: str, value: Any, data: DataConfig, path: Path) -> tuple[str | bytes, ...]:
    """A list of images, or one; null and an empty list: none. Paths are relative to the prompt file."""
    items = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(_image(place, item, data, path) for item in items)


def _image(place: str, item: Any, data: DataConfig, path: Path) -> str | bytes:
    """A path, bytes (base64 in JSONL), or an object with one of the two, as Hugging Face's datasets write images."""
    given = item if isinstance(item, dict) else {"path" if isinstance(item, str) else "bytes": item}
    if isinstance(given.get("bytes"), bytes):
        return given["bytes"]
    if isinstance(given.get("bytes"), str):
        try:
            return base64.b64decode(given["bytes"], validate=True)
        except ValueError as error:
            raise UserError(f"{place}: field {data.images_field!r} holds bytes that are not base64: {error}") from None
    if isinstance(given.get("path"), str):
        return str(path.parent / given["path"])
    raise UserError(f"{place}: field {data.images_field!r} holds {_snippet(repr(item))}; an image is a path, or an object with path or bytes")


def _check_prompt(place: str, prompt: Any, data: DataConfig) -> None:
    if isinstance(prompt, str) and prompt:
        return
    if not isinstance(prompt, list) or not prompt:
        raise UserError(f"{place}: field {data.prompt_field!r} is {_snippet(repr(prompt))}; a prompt is a non-empty text or a list of chat messages")
    if not all(isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in prompt):
        raise UserError(f"{place}: field {data.prompt_field!r} is a list, but not of chat messages {{role, content}}: {_snippet(repr(prompt))}")
    if not data.chat_template:
        raise UserError(f"{place}: field {data.prompt_field!r} holds chat messages; set data.chat_template: true, or give the prompt as text")


def _field(place: str, row: dict[str, Any], key: str, field: str) -> Any:
    if field in row:
        return row[field]
    value: Any = row
    for i, part in enumerate(parts := field.split(".")):
        if not isinstance(value, dict) or part not in value:
            inside = f"{'.'.join(parts[:i])!r} " if i else "it "
            has = f"has {_listed(list(value))}" if isinstance(value, dict) else f"is a {type(value).__name__}"
            raise UserError(f"{place}: no field {field!r} ({key}); {inside}{has}: set {key} to a field that exists")
        value = value[part]
    return value


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "no fields"


def _snippet(text: str) -> str:
    text = text.strip()
    return text if len(text) <= SNIPPET else text[:SNIPPET] + "…"
