from __future__ import annotations

from pathlib import Path

import pytest

from e2e.markers import MARKERS, mistyped_markers, wanted_markers
from e2e.selection import check_candidates, seeds_of, select, select_default
from e2e.summary import exit_code
from matrix import declarations
from matrix.loader import Matrix, load
from matrix.problem import SelectionError
from tests.matrix.tree import CELL

BOTH = ["qwen3-4b.cpu.colocate", "qwen3-4b.cpu.non-colocate"]
CPU = frozenset({"cpu_e2e"})


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("cpu_e2e", {"cpu_e2e"}),
        ("cpu_e2e or npu_e2e", {"cpu_e2e", "npu_e2e"}),
        ("cpu_e2e and not slow", {"cpu_e2e"}),
        ("not cpu_e2e", set()),
        ("not slow and not cpu_e2e", set()),
        ("not slow", set()),
        ("", set()),
        ("cpu_e2e and", set()),
    ],
)
def test_which_platforms_a_marker_expression_asks_for(expression: str, wanted: set[str]):
    assert wanted_markers(expression) == wanted


def test_the_light_list_of_markers_is_the_matrix_s():
    assert set(MARKERS) == set(declarations.MARKERS.values())


@pytest.mark.parametrize("word", ["cpu_e2", "cpu_e3e", "cpu_e2d", "CPU_E2E", "cpue2e"])
def test_a_mistyped_marker_is_named_with_the_nearest(word: str):
    message = mistyped_markers(f"{word} and not slow", ["slow", "cpu_e2e"])
    assert message is not None
    assert f"no marker '{word}'; nearest: cpu_e2e" in message
    assert mistyped_markers("cpu and e2 and gpu_slow", []) is None
    assert mistyped_markers("cpu_e2e and not slow", ["slow", "cpu_e2e"]) is None


def test_a_tier_or_cells_by_name_or_pattern(matrix: Matrix):
    assert [str(cell) for cell in select(matrix, CPU, "smoke", [])] == BOTH
    assert [str(cell) for cell in select(matrix, CPU, None, ["*.colocate"])] == [CELL]
    assert [str(cell) for cell in select(matrix, frozenset(), None, [CELL, "*.cpu.*"])] == BOTH


@pytest.mark.parametrize(
    ("markers", "tier", "cells", "said"),
    [
        (CPU, "weekly", [], "no cell is declared for cpu_e2e in tier 'weekly'; declared are qwen3-4b.cpu.colocate (smoke/nightly)"),
        (CPU, "smkoe", [], "no tier 'smkoe' is declared; nearest: smoke"),
        (frozenset({"npu_e2e"}), "smoke", [], "no cell is declared for npu_e2e"),
        (CPU, None, ["qwen3-4b.cpu.colocated"], "--cell qwen3-4b.cpu.colocated selects nothing; nearest: qwen3-4b.cpu.colocate"),
        (CPU, "weekly", [CELL], "is declared, but not for cpu_e2e in tier weekly"),
        (CPU, None, [CELL, "*.a3.*"], "--cell *.a3.* selects nothing"),
    ],
)
def test_what_selects_nothing_is_an_error_with_names(matrix: Matrix, markers: frozenset[str], tier: str | None, cells: list[str], said: str):
    with pytest.raises(SelectionError) as caught:
        select(matrix, markers, tier, cells)
    assert said in str(caught.value)


def test_by_default_the_first_tier_on_what_is_here_and_all_of_a_platform_that_is_not(npu_tree: Path):
    (npu_tree / "hardware" / "a3.yaml").write_text((npu_tree / "hardware" / "a2.yaml").read_text().replace("name: a2", "name: a3"))
    (npu_tree / "cells" / "a3.yaml").write_text("cells:\n  - {id: qwen3-4b.a3.colocate, recipe: spell-backward, tiers: [weekly]}\n")
    matrix, npu = load(npu_tree), frozenset({"npu_e2e"})
    assert [str(cell) for cell in select_default(matrix, CPU)] == BOTH
    assert len(select_default(matrix, npu, lambda hardware: False)) == 4
    on_a2 = select_default(matrix, npu, lambda hardware: hardware.name == "a2")
    assert ({cell.id.hardware for cell in on_a2}, len(on_a2)) == ({"a2"}, 3)
    assert [str(cell) for cell in select_default(matrix, npu, lambda hardware: hardware.name == "a3")] == ["qwen3-4b.a3.colocate"]
    assert len(select_default(matrix, frozenset(MARKERS), lambda hardware: hardware.platform == "cpu")) == 6
    with pytest.raises(SelectionError, match="no cell is declared for gpu_e2e; declared are"):
        select_default(matrix, frozenset({"gpu_e2e"}))


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([("NOT_RUN", "experimental"), ("NOT_RUN", "required")], 16),
        ([("NOT_RUN", "experimental")], 16),
        ([("PASS", "required"), ("NOT_RUN", "experimental")], 0),
        ([("PASS", "required"), ("NOT_RUN", "required")], 16),
        ([("FAIL", "quarantined"), ("PASS", "required")], 0),
        ([("FAIL", "stale"), ("NOT_RUN", "required")], 1),
        ([("FAIL", "experimental")], 0),
        ([(None, "required")], 0),
    ],
)
def test_the_exit_code_is_that_of_what_blocks_and_nothing_run_is_no_success(rows: list[tuple[str | None, str]], code: int):
    assert exit_code([{"outcome": outcome, "disposition": disposition} for outcome, disposition in rows]) == code


def test_seeds_are_lists_and_ranges():
    assert seeds_of("100") == (100,)
    assert seeds_of("0-3,7,2") == (0, 1, 2, 3, 7)
    for text in ("", "a", "5-3", "1-", "-3", "²", "1-²", "100,,101"):
        with pytest.raises(ValueError, match="not a seed or a range"):
            seeds_of(text)


@pytest.mark.parametrize("text", ["0-99999999999", "99999999999999999999", "100-1100"])
def test_seeds_that_no_run_takes_are_refused_before_they_are_counted(text: str):
    with pytest.raises(ValueError, match="seeds are numbers up to 2147483647, at most 1000 at once"):
        seeds_of(text)


def test_seeds_of_a_baseline_are_not_judged_beside_it(tree: Path):
    cell = load(tree).cell(BOTH[0])
    check_candidates([cell], (100, 101))
    check_candidates([cell], ())
    with pytest.raises(ValueError, match=r"seed 5 of qwen3-4b\.cpu\.colocate is a baseline's: candidates take 100 and up"):
        check_candidates([cell], (100, 5))
