from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from matrix.loader import ROOT, load, read_tree
from matrix.outcome import Disposition
from matrix.problem import MatrixError, SelectionError
from tests.matrix.tree import CELL, CELLS, MODEL, RECIPE, edit, line_of

TODAY = date(2026, 6, 1)


def fault(root: Path) -> str:
    """The only fault of a tree, as a person reads it."""
    _, problems = read_tree(root, TODAY)
    assert len(problems) == 1, problems
    return str(problems[0])


def test_the_checkout_declares_the_two_cells():
    assert {"qwen3-4b.cpu.non-colocate", "qwen3-4b.cpu.colocate"} <= set(load(ROOT).cells)


def test_a_cell_knows_what_it_names(tree: Path):
    cell = load(tree).cell(CELL)
    assert (cell.model.value.hf_id, cell.hardware.value.platform, cell.recipe.value.name) == ("Qwen/Qwen3-4B", "cpu", "spell-backward")
    assert (cell.marker, cell.key, cell.disposition) == ("cpu_e2e", "qwen3-4b.cpu.colocate", Disposition.REQUIRED)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (MODEL, "family: qwen3", "familly: qwen3", "unknown key 'familly'; nearest: family"),
        (RECIPE, "first: 5, last: 25}", "first: 5, lst: 25}", "unknown key 'judge.windows.lst'; nearest: last"),
        (RECIPE, "sided: two", "sided: tow", "'tow' is none of one, two; nearest: two"),
        (RECIPE, "planned_steps: 100", 'planned_steps: "100"', "100 is text; a whole number is wanted"),
        (RECIPE, "alpha: 0.05", "alpha: 910B", "910B is text; a number is wanted"),
        (RECIPE, "max_seeds: 3", "max_seeds: 4", "less than or equal to 3"),
        ("hardware/cpu.yaml", "vllm: 0.32.0", "vllm: 1.10", 'write "1.10" in quotes for text'),
        ("hardware/cpu.yaml", "vllm: 0.32.0", "vllm: 2026-01-01", 'write "2026-01-01" in quotes for text'),
        ("hardware/cpu.yaml", "twins: true", "twins: yes", 'write true or "yes"'),
        ("hardware/cpu.yaml", "platform: cpu", "platform: gpu", "'gpu' is none of cpu, cuda, npu; nearest: npu, cpu"),
        ("hardware/cpu.yaml", "devices_per_node: 4", "devices_per_node: 0", "greater than or equal to 1"),
        (CELLS, "recipe: spell-backward", "recipe: spel-backward", "recipes/spel-backward.yaml is not declared; nearest: spell-backward"),
        (CELLS, "cpu.non-colocate", "cpux.non-colocate", "hardware/cpux.yaml is not declared; nearest: cpu"),
        (CELLS, "qwen3-4b.cpu.non", "qwen3-40b.cpu.non", "models/qwen3-40b.yaml is not declared; nearest: qwen3-4b"),
        (CELLS, "cpu.non-colocate", "cpu.non-colocat", "no setting 'non-colocat'; nearest: non-colocate"),
        (CELLS, "cpu.non-colocate", "cpu.non-colocate+colocate", "settings of one slot (placement)"),
        (CELLS, "[smoke, nightly]", "[smok, nightly]", "no tier 'smok'; nearest: smoke"),
        (CELLS, "qwen3-4b.cpu.non-colocate", "qwen3-4b.cpu.colocate", "are both 'qwen3-4b.cpu.colocate'"),
        (CELLS, "qwen3-4b.cpu.non-colocate", "Qwen3-4b.cpu.non-colocate", "write it in lower case"),
    ],
)
def test_each_fault_is_one_line_with_file_line_value_and_mend(tree: Path, name: str, old: str, new: str, said: str):
    edit(tree, name, old, new)
    text = fault(tree)
    assert said in text
    line = 5 if new == "qwen3-4b.cpu.colocate" else line_of(tree, name, new)  # of two equal ids, the later one is at fault
    assert f"{Path(name).name}:{line}: " in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sided: two", "early_stop: true", "'sided' is missing in judge: add it"),
        ("windows: {first: 5, last: 25}", "windows: {first: 50, last: 60}", "disjoint windows"),
    ],
)
def test_a_fault_of_a_group_stands_on_the_group_s_line(tree: Path, old: str, new: str, said: str):
    edit(tree, RECIPE, old, new)
    text = fault(tree)
    assert said in text
    assert f"spell-backward.yaml:{line_of(tree, RECIPE, 'judge:')}: " in text


def test_every_fault_of_a_tree_is_reported_at_once(tree: Path):
    edit(tree, MODEL, "family: qwen3", "familly: qwen3")
    edit(tree, "hardware/cpu.yaml", "twins: true", "twins: 1")
    edit(tree, RECIPE, "alpha: 0.05", "alpha: 5")
    edit(tree, CELLS, "[smoke, nightly]", "[smok, nightly]")
    edit(tree, "quarantine.yaml", "quarantined: []", "quarantined: [{cell: x}]")
    with pytest.raises(MatrixError) as caught:
        load(tree, TODAY)
    files = {Path(problem.where.file).name for problem in caught.value.problems}
    assert {"qwen3-4b.yaml", "cpu.yaml", "spell-backward.yaml", "quarantine.yaml"} <= files


def test_what_follows_from_a_file_that_did_not_load_is_not_reported_again(tree: Path):
    edit(tree, MODEL, "family: qwen3", "family: 3")
    quarantine(tree, CELL, "2026-07-01")
    assert "qwen3-4b.yaml:2: family: 3 is read as a number (3)" in fault(tree)


def test_a_file_is_called_after_what_it_declares(tree: Path):
    (tree / RECIPE).rename(tree / "recipes/other.yaml")
    _, problems = read_tree(tree, TODAY)
    assert any("'spell-backward' in a file called other.yaml" in problem.message for problem in problems)


def test_settings_out_of_order_are_refused_with_the_canonical_id(tree: Path):
    add_graph(tree)
    edit(tree, CELLS, "cpu.non-colocate", "cpu.graph+non-colocate")
    assert "write 'qwen3-4b.cpu.non-colocate+graph'" in fault(tree)


def test_names_that_collapse_to_one_id_are_refused_with_both_places(tree: Path):
    add_graph(tree)
    edit(tree, CELLS, "qwen3-4b.cpu.non-colocate", "qwen3-4b.cpu.graph+colocate")
    edit(tree, CELLS, "id: qwen3-4b.cpu.colocate", "id: qwen3-4b.cpu.colocate+graph")
    _, problems = read_tree(tree, TODAY)
    texts = [str(problem) for problem in problems]
    assert any("canonical order" in text for text in texts)
    (tree / CELLS).write_text((tree / CELLS).read_text().replace("graph+colocate", "colocate+graph"))
    text = fault(tree)
    assert "yaml:5:" in text
    assert "yaml:2 are both 'qwen3-4b.cpu.colocate+graph'" in text


def add_graph(root: Path) -> None:
    slot = "  - name: execution\n    settings:\n      - {name: graph, summary: captured graphs, config: {vllm: {enforce_eager: false}}}\n"
    edit(root, "modes.yaml", "excludes: []", slot + "excludes: []")


@pytest.mark.parametrize(
    ("excludes", "said"),
    [
        ("[{settings: [colocate, grahp], reason: x}]", "no setting 'grahp'; nearest: graph"),
        ("[{settings: [colocate, non-colocate], reason: x}]", "never meet"),
    ],
)
def test_an_exclusion_that_can_match_nothing_is_refused(tree: Path, excludes: str, said: str):
    add_graph(tree)
    edit(tree, "modes.yaml", "excludes: []", f"excludes: {excludes}")
    assert said in fault(tree)


def test_excluded_settings_do_not_meet_in_a_cell(tree: Path):
    add_graph(tree)
    edit(tree, "modes.yaml", "excludes: []", "excludes: [{settings: [colocate, graph], reason: no graphs on shared devices}]")
    edit(tree, CELLS, "id: qwen3-4b.cpu.colocate", "id: qwen3-4b.cpu.colocate+graph")
    text = fault(tree)
    assert "colocate and graph exclude each other" in text
    assert f"modes.yaml:{line_of(tree, 'modes.yaml', 'no graphs')}): no graphs on shared devices; remove the cell, or the exclusion" in text


def quarantine(root: Path, cell: str, expires: str) -> None:
    entry = f"quarantined:\n- cell: {cell}\n  owner: weights team\n  reason: flaky transport\n  issue: '#12'\n  expires: {expires}\n"
    (root / "quarantine.yaml").write_text(entry)


def test_quarantine_is_a_disposition_of_the_cell(tree: Path):
    quarantine(tree, CELL, "2026-06-01")
    cell = load(tree, TODAY).cell(CELL)
    assert cell.disposition is Disposition.QUARANTINED
    assert cell.quarantined is not None
    assert cell.quarantined.owner == "weights team"


@pytest.mark.parametrize(
    ("cell", "expires", "line", "said"),
    [
        (CELL, "2026-05-31", 6, "expired on 2026-05-31 (owner weights team, issue #12)"),
        ("qwen3-4b.cpu.colocat", "2026-07-01", 2, "no cell 'qwen3-4b.cpu.colocat' is declared; nearest: qwen3-4b.cpu.colocate"),
        (CELL, '"2026-07-01"', 6, "a date (2026-01-31) is wanted"),
    ],
)
def test_quarantine_without_an_end_or_a_cell_is_refused(tree: Path, cell: str, expires: str, line: int, said: str):
    quarantine(tree, cell, expires)
    text = fault(tree)
    assert said in text
    assert f"quarantine.yaml:{line}:" in text


def test_an_unknown_cell_is_answered_with_the_nearest(tree: Path):
    with pytest.raises(SelectionError, match="nearest: qwen3-4b.cpu.colocate"):
        load(tree).cell("qwen3-4b.cpu.colocated")


def test_selection_by_tier_and_hardware(tree: Path):
    matrix = load(tree)
    assert [str(cell) for cell in matrix.select(tier="smoke", hardware="cpu")] == ["qwen3-4b.cpu.colocate", "qwen3-4b.cpu.non-colocate"]
    assert matrix.select(tier="weekly") == []
    assert matrix.select(markers={"npu_e2e"}) == []
    with pytest.raises(SelectionError, match="no tier 'smoek' is declared; nearest: smoke"):
        matrix.select(tier="smoek")


def test_an_empty_matrix_is_a_fault(tree: Path):
    (tree / CELLS).write_text("cells: []\n")
    assert "an empty matrix proves nothing" in fault(tree)
