from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vime.config.tree import DataConfig
from vime.data.files import read_prompts
from vime.errors import UserError

ROWS: list[dict[str, Any]] = [
    {"prompt": "1+1=", "label": "2", "extra": {"level": 1}, "reward_model": {"ground_truth": "2"}},
    {"prompt": "2+2=", "label": "4", "extra": {"level": 2}, "reward_model": {"ground_truth": "4"}},
]


def jsonl(path: Path, *lines: str | bytes | dict[str, Any]) -> Path:
    raw = [json.dumps(line).encode() if isinstance(line, dict) else line.encode() if isinstance(line, str) else line for line in lines]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


def read(path: Path, **fields: Any) -> list[tuple[Any, Any, Any]]:
    return [(r.prompt, r.label, r.metadata) for r in read_prompts(path, DataConfig(path=str(path), **fields))]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_are_read_by_name_nested_ones_too(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"p.{kind}"
    if kind == "jsonl":
        jsonl(path, *ROWS)
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert read(path) == [("1+1=", "2", {}), ("2+2=", "4", {})]
    assert read(path, label_field="reward_model.ground_truth", metadata_field="extra") == [("1+1=", "2", {"level": 1}), ("2+2=", "4", {"level": 2})]


def test_line_ends_blank_lines_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "p.jsonl", b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode() + b"\r", b"", json.dumps(ROWS[1]).encode() + b"\r")
    assert read(path) == [("1+1=", "2", {}), ("2+2=", "4", {})]
    assert [f"{path}:1", f"{path}:3"] == [r.place for r in read_prompts(path, DataConfig(path=str(path)))]


def test_a_file_without_its_last_newline_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    assert len(read(path)) == 2


GOOD = '{"prompt": "a", "label": "b"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "label": ', "not JSON (Expecting value at column 26)"),
        ("{'prompt': 'a'}", "not JSON (Expecting property name enclosed in double quotes at column 2): {'prompt': 'a'}; each line must be"),
        ("[1, 2]", "a list, not a JSON object: [1, 2]; each line must be one object"),
        ("7", "a int, not a JSON object"),
        (b'{"prompt": "\xb0\xa1", "label": "b"}', "not UTF-8 at byte 12"),
        ("[" * 100_000, "not JSON (nested too deep)"),
        ('{"question": "a", "label": "b"}', "no field 'prompt' (data.prompt_field); it has 'question', 'label': set data.prompt_field to a field that exists"),
        ('{"prompt": "a", "answer": "b"}', "no field 'label' (data.label_field); it has 'prompt', 'answer'"),
        ("{}", "no field 'prompt' (data.prompt_field); it has no fields"),
        ('{"prompt": "a", "label": null}', "field 'label' is null; every prompt needs a reference answer"),
        ('{"prompt": null, "label": "b"}', "field 'prompt' is None; a prompt is a non-empty text"),
        ('{"prompt": "", "label": "b"}', "field 'prompt' is ''; a prompt is a non-empty text"),
        ('{"prompt": 5, "label": "b"}', "field 'prompt' is 5; a prompt is a non-empty text or a list of chat messages"),
        ('{"prompt": ["a"], "label": "b"}', "is a list, but not of chat messages {role, content}: ['a']"),
        ('{"prompt": [{"role": "user", "content": "a"}], "label": "b"}', "holds chat messages; set data.chat_template: true"),
    ],
)
def test_a_bad_line_is_named_with_its_value_and_the_mend(tmp_path: Path, line: str | bytes, message: str) -> None:
    path = jsonl(tmp_path / "p.jsonl", GOOD, line, GOOD)
    with pytest.raises(UserError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:2: {message}" if not message.startswith(("is a", "holds")) else f"{path}:2: field 'prompt' {message}")
    assert len(str(caught.value)) < 400


def test_nested_and_metadata_fields_are_named_when_missing(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "p.jsonl", *ROWS)
    with pytest.raises(UserError, match=r"p.jsonl:1: no field 'reward_model.truth' \(data.label_field\); 'reward_model' has 'ground_truth'"):
        read(path, label_field="reward_model.truth")
    with pytest.raises(UserError, match=r"no field 'label.x' \(data.label_field\); 'label' is a str"):
        read(path, label_field="label.x")
    with pytest.raises(UserError, match=r"p.jsonl:1: field 'label' is a str, not an object; metadata needs named values"):
        read(path, metadata_field="label")


def test_parquet_columns_are_named_when_missing(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.Table.from_pylist([{"problem": "a", "answer": "b"}]), path)
    with pytest.raises(UserError, match=r"p.parquet: no column 'prompt' \(data.prompt_field\); it has 'problem', 'answer': set data.prompt_field"):
        read(path)
    assert read(path, prompt_field="problem", label_field="answer") == [("a", "b", {})]


def test_a_parquet_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "a", "label": "b"}] * 1500 + [{"prompt": "a", "label": None}]), path)
    with pytest.raises(UserError, match=r"p.parquet, row 1501: field 'label' is null"):
        read(path)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"not parquet at all", lambda b: b""])
def test_a_damaged_parquet_file_is_refused(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.Table.from_pylist([{"prompt": "a", "label": "b"}] * 100), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"cannot read .*p.parquet as Parquet after row 0"):
        read(path)


def test_missing_file_directory_and_unknown_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.path: no file at .*nowhere.jsonl"):
        read(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match=r"data.path: no file at"):
        read(tmp_path)
    (tmp_path / "p.csv").write_text("prompt,label\n")
    with pytest.raises(UserError, match=r"ends in '.csv'; prompt files are .jsonl .* or .parquet"):
        read(tmp_path / "p.csv")
