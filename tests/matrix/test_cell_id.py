from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.cell_id import MAX_KEY, CellId, key, parse

part = st.from_regex(r"[a-z0-9]{1,6}(-[a-z0-9]{1,4}){0,2}", fullmatch=True)
cells = st.builds(
    CellId,
    model=st.lists(part, min_size=1, max_size=3).map(".".join),
    hardware=part,
    settings=st.lists(part, min_size=1, max_size=3).map(tuple),
    variant=st.none() | part,
)


def test_parts_are_split_from_the_right_because_model_names_contain_dots():
    assert parse("glm-4.7-flash.a3.non-colocate+mtp+graph") == CellId("glm-4.7-flash", "a3", ("non-colocate", "mtp", "graph"))
    assert parse("qwen3.5-35b-a3b.cpu.colocate@pp2") == CellId("qwen3.5-35b-a3b", "cpu", ("colocate",), "pp2")


@given(cells)
def test_text_and_parts_are_one(cell: CellId):
    assert parse(str(cell)) == cell


@given(cells)
def test_a_key_is_a_path_part_and_a_buildkite_step_key(cell: CellId):
    assert re.fullmatch(r"[a-zA-Z0-9_.:-]+", key(cell))
    assert len(key(cell)) <= MAX_KEY


@given(cells, cells)
def test_two_ids_never_share_a_key(one: CellId, other: CellId):
    assert (key(one) == key(other)) == (one == other)


@given(cells)
def test_a_key_leads_back_to_its_id(cell: CellId):
    assert key(cell).replace("__", "@").replace("_", "+") == str(cell)


def test_settings_and_variant_do_not_collide():
    keys = {key(text) for text in ("m.h.a+b", "m.h.a@b", "m.h.a-b", "m.h.a", "m.a.b")}
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qwen3-4b.cpu", "fewer than three parts"),
        ("Qwen3-4B.cpu.colocate", "write it in lower case, 'qwen3-4b.cpu.colocate'"),
        ("qwen3-4b.cpu.colocate@a@b", "more than one '@'"),
        ("qwen3_4b.cpu.colocate", "_ cannot stand in it"),
        ("qwen3-4b.cpu.colocate++graph", "the form is"),
        ("qwen3-4b.cpu.", "the form is"),
        ("", "fewer than three parts"),
        ("qwen3-4b.cpu.colocate\n", "the form is"),
    ],
)
def test_what_is_no_id_is_refused_with_the_reason(text: str, said: str):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse(text)


def test_a_key_too_long_for_a_step_is_refused():
    with pytest.raises(ValueError, match="shorten"):
        key(f"{'m' * 90}.cpu.colocate")
