"""The matrix as Markdown: whole counts, loud cells first, never above the limit, nothing in a text that is taken for markup."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from matrix.outcome import Outcome
from reports.cli import app
from reports.heads import Difference, Head
from reports.night import of_results
from reports.results import CellResult, State, counts
from reports.site.annotation import LIMIT, annotation, escape, sparkline
from reports.site.rows import site

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def cell(number, outcome="PASS", tmp_path=None, *, reason="because", disposition="required", declared=True, nights=1, name=None):
    last = Difference("last", "difference", "inside", -0.2, -0.3, -0.1, 0.1)
    head = Head(
        "1.json", outcome, "convergence", "2026-11-30T03:00:00+00:00", reasons=[reason], suspects=["weight sync"], seeds=[100], statistics=[last], n=1, B=5
    )
    key = name or f"m{number}.cpu.colocate"
    history = (head,) * nights if outcome != "NOT_RUN" else ()
    return CellResult(key, key, tmp_path, declared, disposition, history, recipe="r", now=NOW)


def data(results):
    return site(results, of_results(results), NOW)


def text_of(results, **more):
    return annotation(data(results), **more)


def test_loud_cells_come_first_with_details_and_quiet_ones_are_folded(tmp_path):
    results = [
        cell(1, "PASS", tmp_path),
        cell(2, "FAIL", tmp_path, reason="last window wholly outside"),
        cell(3, "INFRA", tmp_path),
        cell(4, "NOT_RUN", tmp_path),
    ]
    text = text_of(
        results, link=lambda row: f"artifact://{row.page}", pictures={"m2.cpu.colocate": "artifact://x.png"}, curves={"m2.cpu.colocate": [0.1, 0.5, 0.9]}
    )
    assert "**4 cells**: ✗ 1 failed, ⚡ 1 infra, ○ 1 not run, ✓ 1 passed" in text
    assert text.index("m2.cpu.colocate") < text.index("m3.cpu.colocate") < text.index("<details><summary>2 cells passed or did not run")
    assert text.rindex("m1.cpu.colocate") > text.index("<details><summary>2 cells passed or did not run")
    assert '<a href="artifact://cells/m2.cpu.colocate.html">' in text
    assert 'src="artifact://x.png"' in text
    assert "last window wholly outside" in text
    assert "| last | -0.2000 | -0.3000 … -0.1000 | 0.1 | inside |" in text
    assert "✗ -2.00" in text  # how far off, in units of δ
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.parametrize("limit", [1500, 3000, 20_000, LIMIT])
def test_whatever_the_number_of_cells_it_stays_below_the_limit_and_says_what_is_left_out(tmp_path, limit):
    results = [cell(number, "FAIL" if number % 3 else "PASS", tmp_path, reason="ß" * 300) for number in range(500)]
    text = text_of(results, limit=limit)
    assert len(text.encode()) <= limit
    assert "**500 cells**: ✗ 333 failed, ✓ 167 passed" in text
    assert text.count("<details>") == text.count("</details>")
    shown = len(re.findall(r"^\| [✗✓]", text, re.MULTILINE))
    left = re.search(r"(\d+) lines", text)
    assert shown + (int(left[1]) if left else 0) == 500
    assert ("do not fit here" in text) is (left is not None or "details more" in text)


def test_a_limit_that_does_not_hold_the_counts_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not hold the counts"):
        text_of([cell(1, "FAIL", tmp_path)], limit=100)


NASTY = "a|b `c` <img src=x> @team #1 [x](javascript:1) _em_ $HOME\n| row |\n</details>"


def test_texts_are_shown_as_they_are(tmp_path):
    text = text_of([cell(1, "FAIL", tmp_path, reason=NASTY), cell(2, "INFRA", tmp_path, declared=False, name="odd|`name`<b>")])
    assert "<img" not in text
    assert "<b>" not in text
    for line in text.splitlines():
        if line.startswith("| ✗"):
            assert line.count("|") == 6
    assert "@team" not in text
    assert text.count("</details>") == text.count("<details>")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_no_text_breaks_a_table_or_opens_a_tag(words):
    shown = escape(words)
    assert not set("|<>`\n\r@$*[]#~\\") & set(re.sub(r"&#\d+;", "", shown))


def test_a_name_like_not_run_stays_readable():
    assert escape("NOT_RUN and _em_") == "NOT_RUN and &#95;em&#95;"


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200))
def test_sparklines_take_any_numbers(values):
    assert len(sparkline(values)) == min(len(values), 48)
    assert set(sparkline(values)) <= set("▁▂▃▄▅▆▇█×")


def test_states_are_disjoint_and_add_up(tmp_path):
    results = [
        cell(number, outcome, tmp_path, disposition=disposition)
        for number, (outcome, disposition) in enumerate((str(o), d) for o in Outcome for d in ("required", "quarantined", "stale", "experimental"))
    ]
    found = counts(results)
    assert sum(found.values()) == len(results) == 4 * len(Outcome)
    assert found[State.QUARANTINED] == len(Outcome)
    assert found[State.NOT_RUN] == 3
    assert data(results).counts["state"] == {str(state): count for state, count in found.items()}


def test_a_trend_counts_the_nights_and_a_remark_is_shown(tmp_path):
    text = text_of([replace(cell(1, "FAIL", tmp_path, nights=20), remark="the quarantine expired on 2026-01-01 (owner ada, issue I-1)")])
    assert "✗" * 14 + " -2.00" in text
    assert "the quarantine expired on 2026-01-01 (owner ada, issue I-1)" in text


def test_the_command_refuses_what_is_not_there(tmp_path):
    for arguments, words in ((["--tier", "nightlyy"], "--tier nightlyy: no cell of it"), (["--cell", "x.y.z"], "--cell x.y.z: neither declared")):
        done = CliRunner().invoke(app, ["annotate", str(tmp_path), *arguments])
        assert words in str(done.exception)
    done = CliRunner().invoke(app, ["annotate", str(tmp_path), "--tier", "smoke", "-o", str(tmp_path / "a.md")])
    assert done.exit_code == 0
    assert "not run" in (tmp_path / "a.md").read_text()
