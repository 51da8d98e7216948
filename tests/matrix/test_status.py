"""The grid of a results root, from verdict files as data."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.loader import load
from matrix.outcome import Outcome
from matrix.problem import SelectionError
from matrix.resolver import science_hash
from matrix.status import Standing, counts, grid, latest, read_judged, shown_age, standings
from tests.matrix.test_cli import matrix as command
from tests.matrix.tree import CELL, RECIPE, edit

OTHER = "qwen3-4b.cpu.non-colocate"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def judged(root: Path, cell: str, outcome: str = "PASS", ago: timedelta = timedelta(hours=1), **more: Any) -> Path:
    created = NOW - ago
    file = root / cell / "verdicts" / f"{created:%Y%m%dT%H%M%S}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    value = {"outcome": outcome, "evidence": "convergence", "reasons": [f"because of {outcome}"], "created": created.isoformat(), "candidates": [{"seed": 100}]}
    file.write_text(json.dumps({**value, **more}))
    return file


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    root.mkdir()
    return root


def row(rows: list[Standing], cell: str = CELL) -> Standing:
    return next(one for one in rows if one.cell == cell)


def test_every_declared_cell_has_outcome_and_disposition(tree: Path, results: Path):
    judged(results, CELL)
    rows = standings(results, load(tree), now=NOW)
    assert [(one.cell, one.outcome, one.disposition) for one in rows] == [(CELL, "PASS", "required"), (OTHER, "NOT_RUN", "required")]
    assert (row(rows).age_s, row(rows).seeds, row(rows).reason) == (3600.0, (100,), "because of PASS")
    assert row(rows, OTHER).reason == "no run and no verdict in the results"


def test_the_newest_verdict_counts_and_runs_without_one_are_said(tree: Path, results: Path):
    judged(results, CELL, "FAIL", timedelta(hours=3))
    judged(results, CELL, "PASS", timedelta(hours=1))
    (results / OTHER / "seed-100").mkdir(parents=True)
    rows = standings(results, load(tree), now=NOW)
    assert row(rows).outcome is Outcome.PASS
    assert row(rows, OTHER).reason == "seed-100: not judged yet"


def test_a_verdict_older_than_its_tier_allows_is_stale(tree: Path, results: Path):
    judged(results, CELL, ago=timedelta(days=3))
    one = row(standings(results, load(tree), now=NOW))
    assert (one.outcome, one.disposition, one.remark) == ("PASS", "stale", "judged 3 d ago; its tiers allow 2 d")


def test_a_changed_recipe_makes_what_was_judged_stale(tree: Path, results: Path):
    matrix = load(tree)
    judged(results, CELL, declared={"science_hash": science_hash(CELL, matrix)})
    assert row(standings(results, matrix, now=NOW)).disposition == "required"
    edit(tree, RECIPE, "    lr: 5.0e-4", "    lr: 4.0e-4")
    assert row(standings(results, load(tree), now=NOW)).remark == "the recipe changed since this was judged"
    judged(results, CELL, "NO_BASELINE", timedelta(), stale=True)
    one = row(standings(results, load(tree), now=NOW))
    assert (one.disposition, one.remark) == ("stale", "the recipe changed since its baseline was recorded")


def test_a_quarantined_cell_keeps_its_outcome_and_says_who_and_until_when(tree: Path, results: Path):
    (tree / "quarantine.yaml").write_text(f"quarantined:\n- {{cell: {CELL}, owner: weights team, reason: flaky, issue: '#12', expires: 2999-01-01}}\n")
    judged(results, CELL, "FAIL", timedelta(days=3))
    one = row(standings(results, load(tree), now=NOW))
    assert (one.outcome, one.disposition) == ("FAIL", "quarantined")
    assert one.remark == "until 2999-01-01 by weights team (#12): flaky; judged 3 d ago; its tiers allow 2 d"


def test_exactness_is_never_counted_as_convergence(tree: Path, results: Path):
    judged(results, CELL, evidence="exactness")
    judged(results, OTHER)
    rows = standings(results, load(tree), now=NOW)
    assert row(rows).title == "PASS (exactness)"
    assert row(rows, OTHER).title == "PASS"
    assert counts(rows)[:2] == ["convergence: 1 PASS", "exactness: 1 PASS"]


def test_folders_that_no_declaration_knows_are_shown(tree: Path, results: Path):
    judged(results, "gone.cpu.colocate", "FAIL")
    (results / "not-a-cell").mkdir()
    one = standings(results, load(tree), now=NOW)[-1]
    assert (one.cell, one.outcome, one.disposition) == ("gone.cpu.colocate", "FAIL", "undeclared")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"outcome": "GREEN"}', '{"outcome": "PASS"}', '{"outcome": "PASS", "evidence": "x", "created": "today"}']
)
def test_a_verdict_that_cannot_be_read_is_invalid_and_never_a_pass(tree: Path, results: Path, text: str):
    judged(results, CELL).write_text(text)
    one = row(standings(results, load(tree), now=NOW))
    assert one.outcome is Outcome.INVALID
    assert "is not a verdict that can be read" in one.reason


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["outcome", "evidence", "created", "reasons", "candidates", "declared", "stale"]), inner, max_size=7)
        ),
        max_leaves=12,
    )
)
@settings(max_examples=150)
def test_whatever_a_verdict_file_holds_reading_it_gives_one_line_and_no_error(tmp_path_factory: pytest.TempPathFactory, value: object):
    file = tmp_path_factory.mktemp("verdict") / "20261130T110000.json"
    file.write_text(json.dumps(value))
    assert read_judged(file).outcome in Outcome


def test_a_real_verdict_is_read(results: Path):
    from matrix.rule import JudgeRule, Windows
    from reports.verdict import Verdict

    rule = JudgeRule(evidence="exactness", sided="two", planned_steps=3, windows=Windows(first=1, last=1))
    Verdict(outcome=Outcome.NOT_RUN, evidence="exactness", headline="no device", reasons=["no device"], rule=rule, candidates=[]).write(
        results / CELL / "verdicts"
    )
    found = latest(results / CELL)
    assert found is not None
    assert (found.outcome, found.evidence, found.reasons, found.recipe_changed) == (Outcome.NOT_RUN, "exactness", ("no device",), False)
    assert found.created is not None


def test_ages_in_the_largest_whole_unit():
    assert [shown_age(seconds) for seconds in (None, 5, 65, 7300, 200_000)] == ["-", "5 s", "1 min", "2 h", "2 d"]


def test_the_grid_is_one_line_a_cell(tree: Path, results: Path):
    lines = grid(standings(results, load(tree), now=NOW))
    assert lines[0].split() == ["cell", "outcome", "evidence", "disposition", "age", "seeds", "reason"]
    assert lines[1].split()[:6] == [CELL, "NOT_RUN", "convergence", "required", "-", "-"]
    assert lines[-1] == "convergence: 2 NOT_RUN"


def test_the_command_prints_the_grid_and_json_without_any_heavy_import(tree: Path, results: Path):
    judged(results, CELL)
    done = command("status", str(results), root=tree)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:2] == [CELL, "PASS"]
    told = json.loads(command("status", str(results), "--tier", "smoke", "--json", root=tree).stdout)
    assert [(one["cell"], one["title"]) for one in told] == [(CELL, "PASS"), (OTHER, "NOT_RUN")]


def test_a_root_that_is_not_there_is_one_line_and_exit_2(tree: Path, tmp_path: Path):
    with pytest.raises(SelectionError, match="no such results directory"):
        standings(tmp_path / "nowhere", load(tree))
    done = command("status", str(tmp_path / "nowhere"), root=tree)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_verdict_from_the_future_is_stale_because_its_age_is_not_known(tree: Path, results: Path):
    judged(results, CELL, ago=timedelta(days=-3))
    judged(results, OTHER, ago=timedelta(minutes=-5))  # clocks of two machines
    rows = standings(results, load(tree), now=NOW)
    assert (row(rows).disposition, row(rows).remark) == ("stale", "judged 3 d ahead of now: a clock is wrong, so its age is not known")
    assert (row(rows, OTHER).disposition, row(rows, OTHER).remark) == ("required", "")


def test_a_file_that_is_not_called_by_a_time_is_no_verdict(tree: Path, results: Path):
    for name in ("notes.json", ".20991231T000000.json", "zzz.json"):
        judged(results, CELL).with_name(name).write_text("{}")
    assert row(standings(results, load(tree), now=NOW)).outcome is Outcome.PASS


def test_a_verdict_nested_too_deep_to_read_is_invalid(results: Path):
    file = results / "1.json"
    file.write_text("[" * 100_000)
    assert read_judged(file).outcome is Outcome.INVALID


def test_a_reason_stays_on_its_line_of_the_grid(tree: Path, results: Path):
    judged(results, CELL, reasons=["two\nlines and \x1b[31mred"])
    lines = grid(standings(results, load(tree), now=NOW))
    assert lines[1].endswith("two lines and  [31mred")
