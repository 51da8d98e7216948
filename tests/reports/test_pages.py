"""The pages: every cell is there, nothing is loaded from elsewhere, states are words."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from matrix import load
from matrix.outcome import Outcome
from reports.compare import compare_paths
from reports.errors import ReportError
from reports.judge import judge
from reports.page.charts import BINS, Series
from reports.page.names import ranges
from reports.results import State, read_results
from reports.site import write
from reports.verdict import Declared, Verdict
from tests.matrix.tree import make_tree
from tests.reports.synthetic import CELL, SCIENCE, jsonl, rewards, rule, run_dir

DECLARED = Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE)
VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Results with a pass, a fail, a NaN, a runner's note and runs without a verdict; the rest of the declared cells never ran."""
    root = tmp_path_factory.mktemp("results")
    base = [run_dir(tmp_path_factory.mktemp("base") / f"seed-{seed}", seed) for seed in range(5)]
    nan = rewards(100)
    nan[40] = float("nan")
    for key, values in ((CELL, rewards(100)), ("bad.cpu.colocate", rewards(100, plateau=0.8)), ("nan.cpu.colocate", nan)):
        run = run_dir(root / key / "seed-100", 100, values)
        judge([run], base, rule(), DECLARED).write(root / key / "verdicts")
    run_dir(root / "unjudged.cpu.colocate" / "seed-100", 100)
    notes = root / "lost.cpu.colocate" / "verdicts"
    notes.mkdir(parents=True)
    lost = Verdict(outcome=Outcome.INFRA, evidence="convergence", headline="lost", reasons=["seed 100: <disk> full"], rule=rule(), candidates=[])
    lost.write(notes / "1.json")
    out = tmp_path_factory.mktemp("report")
    return root, out, write(root, out)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A matrix of two cells: what does not ask for the whole declaration is written in a moment."""
    return make_tree(tmp_path_factory.mktemp("tree"))


class Balanced(HTMLParser):
    """Fails on a tag that is closed out of turn."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.links = []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def pages(out):
    return [out / "index.html", *sorted((out / "cells").glob("*.html"))]


def test_every_declared_cell_appears_and_the_counts_add_up(site):
    _root, out, index = site
    text = index.read_text()
    declared = load().cells
    for cell in declared.values():
        assert f'href="cells/{cell.key}.html"' in text
        assert (out / "cells" / f"{cell.key}.html").is_file()
    found = json.loads((out / "index.json").read_text())["cells"]
    assert len(found) == len(declared) + 4
    outcomes = {cell["key"]: cell["outcome"] for cell in found}
    assert outcomes[CELL] == "PASS"
    assert outcomes["bad.cpu.colocate"] == outcomes["nan.cpu.colocate"] == "FAIL"
    assert outcomes["lost.cpu.colocate"] == "INFRA"
    assert outcomes["unjudged.cpu.colocate"] == "NOT_RUN"
    assert [outcomes[cell.key] for cell in declared.values() if cell.key != CELL] == ["NOT_RUN"] * (len(declared) - 1)
    chips = {state: int(count) for count, state in re.findall(r"</span>(\d+) ([a-z ()]+)</button>", text)}
    assert chips == json.loads((out / "index.json").read_text())["counts"]["state"]
    assert sum(chips.values()) == len(found)
    assert (chips["failed"], chips["infra"], chips["stale"]) == (2, 1, 1)  # the made-up science hash is not the recipe's: stale


def test_pages_are_whole_and_name_nothing_elsewhere(site):
    for page in pages(site[1]):
        parser = Balanced()
        parser.feed(page.read_text())
        assert parser.open == []
        for link in parser.links:
            assert link in ("data:,", "#") or (page.parent / link).resolve().is_file(), f"{page.name}: {link}"
        text = page.read_text()
        assert not re.search(r"https?://", text)
        assert 'name="viewport"' in text
        assert len(text.encode()) < 1_500_000


def test_a_site_has_one_shared_asset_and_a_single_file_page_has_none(site, tree, tmp_path):
    root, out, _ = site
    assert sorted(path.suffix for path in (out / "assets").iterdir()) == [".LICENSE", ".css", ".js"]
    write(root, tmp_path, matrix_root=tree, single_file=True)
    assert not (tmp_path / "assets").exists()
    for page in pages(tmp_path):
        text = page.read_text()
        assert "Copyright (c) 2022 Leon Sorokin" in text  # the library stands in the page, with its licence
        assert "prefers-color-scheme: dark" in text
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="(?!data:)', text)
        assert len(text.encode()) < 1_500_000


def test_state_is_said_in_words_and_texts_are_escaped(site):
    text = (site[1] / "index.html").read_text()
    assert 'class="state state-failed">✗ failed</span>' in text
    assert 'class="state state-infra">⚡ infra</span>' in text
    assert "&lt;disk&gt; full" in text
    assert "<disk>" not in text


def test_cell_page_shows_what_decided(site):
    text = (site[1] / "cells" / "bad.cpu.colocate.html").read_text()
    for wanted in ("Suspect:", "last window", "✗ outside", "log-prob gap", "wanted", "host-a", "torch 2.13.0", "seven spreads", "step 90"):
        assert wanted in text
    drawn = curves(site[1] / "cells" / "bad.cpu.colocate.html")
    reward = drawn["figures"][0]
    assert reward["metric"] == "rollout/reward_mean"
    assert [series["role"] for series in reward["series"]] == ["low", "mean", "high", *["run"] * 6]
    assert [series["group"] for series in reward["series"]].count(0) == 3 + 5  # the band, and every baseline run
    assert [window[0] for window in reward["windows"]] == ["first window", "last window"]
    nan = curves(site[1] / "cells" / "nan.cpu.colocate.html")["figures"][0]["series"][-1]
    assert nan["bad"] == [40, "nan"]
    assert nan["y"][40] is None


def curves(page):
    """What the page's script draws."""
    found = re.search(r'<script type="application/json" id="curves">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found[1])


def test_json_lies_beside_the_page_and_pictures_where_asked_for(site, tree, tmp_path):
    record = json.loads((site[1] / "cells" / f"{CELL}.json").read_text())
    assert record["verdict"]["outcome"] == record["outcome"] == "PASS"
    assert len(record["verdict"]["comparisons"]) == 4
    assert record["curves"]["figures"][0]["metric"] == "rollout/reward_mean"
    assert not list((site[1] / "cells").glob("*.png"))
    write(site[0], tmp_path, matrix_root=tree, png="summary")
    assert (tmp_path / "cells" / f"{CELL}.png").read_bytes().startswith(b"\x89PNG")
    assert f'href="{CELL}.png"' in (tmp_path / "cells" / f"{CELL}.html").read_text()


def test_runs_that_are_gone_are_drawn_from_the_verdict(site, tree, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(site[0], root)
    shutil.rmtree(root / CELL / "seed-100")
    verdict = next((root / CELL / "verdicts").glob("*.json"))
    verdict.write_text(verdict.read_text().replace(str(site[0]), "/nowhere"))
    write(root, tmp_path / "out", matrix_root=tree)
    text = (tmp_path / "out" / "cells" / f"{CELL}.html").read_text()
    assert len(curves(tmp_path / "out" / "cells" / f"{CELL}.html")["figures"][0]["series"]) == 3 + 5 + 1
    assert "PASS" in text


def test_latest_verdict_counts_and_the_history_is_kept(site, tree, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(site[0], root)
    old = json.loads(next((root / CELL / "verdicts").glob("*.json")).read_text())
    (root / CELL / "verdicts" / "20200101T000000Z.json").write_text(json.dumps(old | {"created": "2020-01-01T00:00:00+00:00", "outcome": "FAIL"}))
    result = next(result for result in read_results(root, tree) if result.key == CELL)
    assert result.outcome is Outcome.PASS
    assert [head.outcome for head in result.history] == ["FAIL", "PASS"]


def test_stale_baseline_is_said(tree, tmp_path):
    run = run_dir(tmp_path / "root" / CELL / "seed-100", 100)
    base = [run_dir(tmp_path / f"seed-{seed}", seed, labels={"cell": CELL, "science_hash": "b" * 64}) for seed in range(3)]
    judge([run], base, rule(), DECLARED).write(tmp_path / "root" / CELL / "verdicts")
    result = next(result for result in read_results(tmp_path / "root", tree) if result.key == CELL)
    assert (result.outcome, result.disposition) == (Outcome.NO_BASELINE, "stale")
    write(tmp_path / "root", tmp_path / "out", matrix_root=tree)
    assert "the baseline is stale" in (tmp_path / "out" / "cells" / f"{CELL}.html").read_text()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"outcome": "GREEN"}', '{"schema_version": 99, "outcome": "PASS", "evidence": "convergence", "created": "2026-01-01"}']
)
def test_a_file_that_is_no_verdict_is_invalid_and_the_page_is_written(tree, tmp_path, content):
    (tmp_path / "root" / CELL / "verdicts").mkdir(parents=True)
    (tmp_path / "root" / CELL / "verdicts" / "1.json").write_text(content)
    write(tmp_path / "root", tmp_path / "out", matrix_root=tree)
    result = next(result for result in read_results(tmp_path / "root", tree) if result.key == CELL)
    assert (result.outcome, result.state) == (Outcome.INVALID, State.INVALID)
    assert "1.json is not a verdict that can be read" in (tmp_path / "out" / "cells" / f"{CELL}.html").read_text()


def test_missing_root_is_an_error(tmp_path):
    with pytest.raises(ReportError, match="no such results"):
        write(tmp_path / "nothing", tmp_path / "out")


def test_comparison_of_runs(tmp_path):
    runs = [run_dir(tmp_path / "a", 1), run_dir(tmp_path / "b", 2), jsonl(tmp_path / "c.jsonl", rewards(3))]
    text = compare_paths(runs, tmp_path / "out").read_text()
    reward = curves(tmp_path / "out" / "index.html")["figures"][0]
    assert [series["name"] for series in reward["series"]] == ["a (seed 1)", "b (seed 2)", "c"]
    assert (tmp_path / "out" / "index.png").is_file()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []


def test_comparison_refuses_what_it_cannot_compare(tmp_path):
    with pytest.raises(ReportError, match="two or more"):
        compare_paths([run_dir(tmp_path / "a", 1)], tmp_path / "out")
    with pytest.raises(ReportError, match="share no metric"):
        compare_paths([tmp_path / "a", jsonl(tmp_path / "b.jsonl", [1.0], metric="something else")], tmp_path / "out")


def test_long_lines_are_thinned_without_losing_a_spike():
    import numpy as np

    values = np.zeros(10_000)
    values[4321] = 9.0
    values[7000] = np.nan
    steps, drawn = Series("a", np.arange(10_000), values, 1).drawn()
    assert len(steps) <= 2 * BINS
    assert np.nanmax(drawn) == 9.0
    assert (np.diff(steps) > 0).all()


def test_ranges_of_seeds():
    assert ranges([100, 101, 102, 105]) == "100–102, 105"
    assert ranges([]) == ""
