from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from matrix.yaml_file import Document, read_yaml


def read(tmp_path: Path, text: str) -> Document:
    (tmp_path / "x.yaml").write_text(text)
    return read_yaml(tmp_path / "x.yaml")


def only_problem(document: Document) -> tuple[int, str]:
    assert len(document.problems) == 1, document.problems
    return document.problems[0].where.line, document.problems[0].message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 0123\n", 'write 123 for a number or "0123" for text'),
        ("a: 1\nb: no\n", 'write false or "no"'),
        ("a: 1\nb: Yes\n", 'write true or "Yes"'),
        ("a: 1\nb: off\n", "write false"),
        ("a: 1\nb: 1_000\n", "write 1000"),
        ("a: 1\nb: 0x1f\n", "in decimal"),
        ("a: 1\nb:\n", "write null, or remove the key"),
        ("a: 1\nb: .nan\n", "not a finite number"),
        ("a: 1\nb: -.inf\n", "not a finite number"),
        ("a: 1\na: 2\n", "'a' is set twice (first on line 1)"),
        ("a: 1\n1.10: 2\n", 'write "1.10" in quotes'),
        ("a: 1\nyes: 2\n", 'write true or "yes"'),
        ("a: {b: 1}\nc: {<<: {d: 1}}\n", "merge keys"),
        ("a: 1\nb: 2026-13-01\n", 'write "2026-13-01" for text'),
        ("a: 1\nb: !!binary aGk=\n", "the tag"),
    ],
)
def test_each_trap_is_one_problem_on_its_line(tmp_path: Path, text: str, said: str):
    line, message = only_problem(read(tmp_path, text))
    assert line == 2
    assert said in message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("-3", -3),
        ("0", 0),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("910B", "910B"),
        ('"0123"', "0123"),
        ("'no'", "no"),
        ("0.32.0", "0.32.0"),
        ("2026-01-31", date(2026, 1, 31)),
        ("[1, two]", [1, "two"]),
    ],
)
def test_values_are_read_as_written(tmp_path: Path, text: str, value: object):
    document = read(tmp_path, f"a: {text}\n")
    assert document.problems == []
    assert document.data == {"a": value}
    assert type(document.data["a"]) is type(value)


def test_every_key_knows_its_line(tmp_path: Path):
    document = read(tmp_path, "# head\na:\n  b:\n  - c: 1\n  - d: 2\n")
    assert document.lines[("a", "b", 1, "d")] == 5
    assert document.where(("a", "b", 1, "nowhere")).line == 5


@pytest.mark.parametrize(
    ("text", "said"), [("a: [1\nb: 2\n", "not YAML"), ("", "0 YAML documents"), ("a: 1\n---\nb: 2\n", "2 YAML documents"), ("a: b: c\n", "not YAML")]
)
def test_what_is_no_yaml_document_is_one_problem(tmp_path: Path, text: str, said: str):
    assert said in only_problem(read(tmp_path, text))[1]


def test_a_file_in_another_encoding_is_one_problem(tmp_path: Path):
    (tmp_path / "x.yaml").write_bytes("a: ä\n".encode("utf-16"))
    assert "UTF-8" in only_problem(read_yaml(tmp_path / "x.yaml"))[1]
