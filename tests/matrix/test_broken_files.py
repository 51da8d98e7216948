"""Files that are broken in ways no example of a fault is: each is one line with its place, never a traceback, and nothing is passed over in silence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.checks import check
from matrix.loader import read_tree
from tests.matrix.tree import CELLS, MODEL, RECIPE, edit, record

SCHEMA = "schema/vime-config.schema.json"


def faults(root: Path) -> list[str]:
    matrix, problems = read_tree(root)
    return [str(problem) for problem in sorted({*problems, *check(matrix)}) if "has no baseline" not in problem.message]


def only(root: Path) -> str:
    (found,) = faults(root)
    return found


NESTED = "\n".join(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdef", "bcdefg", strict=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": 0 YAML documents where one is wanted"),
        ("hello\n", ":1: the file holds text; keys with values are wanted"),
        ("- hello\n", ":1: the file holds a list; keys with values are wanted"),
        ("cells: &a\n  - *a\n", ":1: cells.0: the alias stands for something that holds it"),
        ("cells: &a\n  - {id: *a}\n", "the alias stands for something that holds it"),
        (f"a: &a [x, x, x, x, x, x, x, x, x]\n{NESTED}\ncells: []\n", " values, aliases written out: no declaration is that long"),
        ("cells: " + "[" * 3000 + "]" * 3000 + "\n", "not YAML: exceeded maximum nesting depth"),
    ],
    ids=["empty", "text", "list", "circle", "circle in a mapping", "bomb", "deep"],
)
def test_a_file_that_is_no_declaration_is_one_line(tree: Path, text: str, said: str):
    (tree / CELLS).write_text(text)
    assert said in only(tree)


@pytest.mark.parametrize("change", [lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n")], ids=["byte order mark", "CRLF"])
def test_what_other_editors_write_is_read(tree: Path, change: Callable[[bytes], bytes]):
    (tree / CELLS).write_bytes(change((tree / CELLS).read_bytes()))
    assert faults(tree) == []


def test_a_file_under_another_suffix_is_a_fault_because_its_cells_would_be_left_out_in_silence(tree: Path):
    (tree / CELLS).with_name("more.yml").write_text("cells: []\n")
    assert only(tree).endswith("more.yml: declarations end in .yaml: rename it to more.yaml")


def test_hidden_files_of_editors_are_passed_over(tree: Path):
    (tree / CELLS).with_name(".#qwen3-4b.yaml").symlink_to("somebody@somewhere.1234")
    (tree / CELLS).with_name("._qwen3-4b.yaml").write_bytes(b"\x00\x05\x16\x07")
    assert faults(tree) == []


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("/nowhere"), lambda path: path.symlink_to(path), os.mkfifo])
def test_what_is_no_file_is_said_to_be_none(tree: Path, make: Callable[[Path], None]):
    (tree / MODEL).unlink()
    make(tree / MODEL)
    assert only(tree).endswith("qwen3-4b.yaml: is not a file that can be read")


def test_a_link_to_a_file_is_that_file(tree: Path):
    (tree / MODEL).rename(tree / "elsewhere.txt")
    (tree / MODEL).symlink_to(tree / "elsewhere.txt")
    assert faults(tree) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (SCHEMA, "{", "write it again with 'make schema'"),
        (SCHEMA, "[]", "is not an object with properties: write it again with 'make schema'"),
        (SCHEMA, "{}", "is not an object with properties"),
        ("schema/options/vllm-0.32.0.json", "", "write it again with 'make contracts'"),
        ("schema/options/vllm-0.32.0.json", "{}", "is not an object with package, version, sections: write it again with 'make contracts'"),
        (
            "warmstarts/play/config.json",
            "{",
            "is not a JSON object (Expecting property name enclosed in double quotes",
        ),
        ("warmstarts/play/config.json", "[]", "is not a JSON object: make the warm start again"),
    ],
)
def test_a_committed_file_that_is_torn_is_one_line_with_the_command_that_writes_it(tree: Path, name: str, text: str, said: str):
    (tree / name).write_text(text)
    line = only(tree)
    assert said in line


@pytest.mark.parametrize("value", ["many", "151936.5", "true", "-1", "[1]"])
def test_a_size_that_is_no_number_is_a_fault_of_the_model(tree: Path, value: str):
    edit(tree, MODEL, "vocab_size: 151936", f"vocab_size: {value}")
    assert any("'vocab_size' in the architecture of a 'qwen3' is" in line and MODEL in line for line in faults(tree))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"runs": None}, "runs is not a list of {seed, path}"),
        ({"runs": ["seed-0"]}, "runs is not a list of {seed, path}"),
        ({"runs": [{"seed": 0}]}, "runs is not a list of {seed, path}"),
        ({"runs": [{"seed": 0, "path": "../../x"}]}, "path '../../x' is no folder of this baseline"),
        ({"runs": [{"seed": 0, "path": "seed-0"}] * 2}, "seeds [0, 0]: a baseline's are 0 to 99, each once"),
    ],
)
def test_a_baseline_s_list_of_runs_that_is_none_is_one_line(tree: Path, told: object, said: str):
    (record(tree) / "baseline.json").write_text(json.dumps(told))
    assert said in only(tree)


@pytest.mark.parametrize(
    ("line", "said"), [("    tiers: [smoke, smoke]\n", "tiers: smoke stands there twice"), ("    tiers: [nightly, smoke, nightly]\n", "nightly")]
)
def test_a_tier_that_is_named_twice_is_a_fault(tree: Path, line: str, said: str):
    edit(tree, CELLS, "    tiers: [smoke, nightly]\n", line)
    assert said in only(tree)


def test_a_recipe_is_judged_by_something(tree: Path):
    edit(tree, RECIPE, "metric: rollout/reward_mean", 'metric: ""')
    assert "judge.metric" in only(tree)
