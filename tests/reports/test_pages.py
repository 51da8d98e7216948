"""The pages: every cell is there, nothing is loaded from elsewhere, states are words."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from matrix import load
from matrix.outcome import Outcome
from reports.compare import compare_paths
from reports.errors import ReportError
from reports.judge import judge
from reports.page import write
from reports.page.axes import label, nice_range, ticks
from reports.page.charts import MAX_BINS, Series
from reports.page.render import ranges
from reports.results import read_results
from reports.verdict import Declared
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
    record = {
        "cell": "lost",
        "outcome": "INFRA",
        "reasons": ["seed 100: <disk> full"],
        "runs": [{"path": "seed-100", "seed": 100}],
        "disposition": "required",
        "time": 1.0e9,
    }
    (notes / "1.json").write_text(json.dumps(record))
    out = tmp_path_factory.mktemp("report")
    return root, out, write(root, out)


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
    found = json.loads((out / "report.json").read_text())["cells"]
    assert len(found) == len(declared) + 4
    outcomes = {cell["key"]: cell["outcome"] for cell in found}
    assert outcomes[CELL] == "PASS"
    assert outcomes["bad.cpu.colocate"] == outcomes["nan.cpu.colocate"] == "FAIL"
    assert outcomes["lost.cpu.colocate"] == "INFRA"
    assert outcomes["unjudged.cpu.colocate"] == "NOT_RUN"
    assert [outcomes[cell.key] for cell in declared.values() if cell.key != CELL] == ["NOT_RUN"] * (len(declared) - 1)
    chips = sum(int(count) for count in re.findall(r"</span>(\d+) [A-Z_]+</span>", text))
    assert chips == len(found)


def test_pages_are_whole_and_load_nothing(site):
    for page in pages(site[1]):
        parser = Balanced()
        parser.feed(page.read_text())
        assert parser.open == []
        for link in parser.links:
            assert link == "data:," or (page.parent / link).resolve().is_file(), f"{page.name}: {link}"
        text = page.read_text()
        assert not re.search(r"https?://", text)
        assert "@import" not in text
        assert "prefers-color-scheme: dark" in text
        assert 'name="viewport"' in text


def test_state_is_said_in_words_and_texts_are_escaped(site):
    text = (site[1] / "index.html").read_text()
    assert "✗</span>FAIL" in text
    assert "&lt;disk&gt; full" in text
    assert "<disk>" not in text


def test_cell_page_shows_what_decided(site):
    text = (site[1] / "cells" / "bad.cpu.colocate.html").read_text()
    for wanted in ("Suspect:", "last window", "outside", "log-prob gap", "wanted", "host-a", "torch 2.13.0", "seven spreads", "step 90"):
        assert wanted in text
    assert text.count('class="base"') >= 5  # every baseline run
    assert "✗ NaN at 40" in (site[1] / "cells" / "nan.cpu.colocate.html").read_text()


def test_picture_and_json_lie_beside_the_page(site):
    cells = site[1] / "cells"
    assert (cells / f"{CELL}.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((cells / f"{CELL}.json").read_text())
    assert record["verdict"]["outcome"] == "PASS"
    assert len(record["verdict"]["comparisons"]) == 4


def test_runs_that_are_gone_are_drawn_from_the_verdict(site, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(site[0], root)
    shutil.rmtree(root / CELL / "seed-100")
    verdict = next((root / CELL / "verdicts").glob("*.json"))
    verdict.write_text(verdict.read_text().replace(str(site[0]), "/nowhere"))
    write(root, tmp_path / "out")
    text = (tmp_path / "out" / "cells" / f"{CELL}.html").read_text()
    assert 'class="cand c1"' in text
    assert "PASS" in text


def test_latest_verdict_counts_and_the_history_is_kept(site, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(site[0], root)
    old = json.loads(next((root / CELL / "verdicts").glob("*.json")).read_text())
    (root / CELL / "verdicts" / "0.json").write_text(json.dumps(old | {"created": "2020-01-01T00:00:00+00:00", "outcome": "FAIL"}))
    result = next(result for result in read_results(root) if result.key == CELL)
    assert result.outcome is Outcome.PASS
    assert [str(judgement.outcome) for judgement in result.history] == ["FAIL", "PASS"]


def test_stale_baseline_is_said(tmp_path):
    run = run_dir(tmp_path / "root" / CELL / "seed-100", 100)
    base = [run_dir(tmp_path / f"seed-{seed}", seed, labels={"cell": CELL, "science_hash": "b" * 64}) for seed in range(3)]
    judge([run], base, rule(), DECLARED).write(tmp_path / "root" / CELL / "verdicts")
    result = next(result for result in read_results(tmp_path / "root") if result.key == CELL)
    assert (result.outcome, result.disposition) == (Outcome.NO_BASELINE, "stale")
    write(tmp_path / "root", tmp_path / "out")
    assert "the baseline is stale" in (tmp_path / "out" / "cells" / f"{CELL}.html").read_text()


@pytest.mark.parametrize("content", ["{", '{"outcome": "GREEN"}', '{"schema_version": 99, "rule": {}}'])
def test_a_file_that_is_no_verdict_is_an_error_not_a_pass(site, tmp_path, content):
    (tmp_path / CELL / "verdicts").mkdir(parents=True)
    (tmp_path / CELL / "verdicts" / "1.json").write_text(content)
    with pytest.raises(ReportError, match=r"1\.json"):
        read_results(tmp_path)


def test_missing_root_is_an_error(tmp_path):
    with pytest.raises(ReportError, match="no such results"):
        write(tmp_path / "nothing", tmp_path / "out")


def test_comparison_of_runs(tmp_path):
    runs = [run_dir(tmp_path / "a", 1), run_dir(tmp_path / "b", 2), jsonl(tmp_path / "c.jsonl", rewards(3))]
    text = compare_paths(runs, tmp_path / "out").read_text()
    assert [f'class="cand c{n}"' in text for n in (1, 2, 3)] == [True] * 3
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
    assert len(steps) <= 2 * MAX_BINS
    assert np.nanmax(drawn) == 9.0
    assert (np.diff(steps) > 0).all()


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(0, 1, False), (0.3, 0.97, False), (5, 5, False), (0, 0, False), (-3, -3, False), (1e-8, 3e-3, True), (1e-7, 1e-7, True), (1e9, 3e9, False)],
)
def test_axes_cover_the_values_with_a_few_round_ticks(low, high, log):
    bottom, top = nice_range(low, high, log)
    assert bottom <= low <= high <= top
    assert bottom < top
    assert 2 <= len(ticks(bottom, top, log)) <= 8
    assert all(len(label(tick)) <= 13 for tick in ticks(bottom, top, log))


def test_ranges_of_seeds():
    assert ranges([100, 101, 102, 105]) == "100–102, 105"
    assert ranges([]) == ""


@pytest.mark.skipif(not (shutil.which("chromium") or shutil.which("chromium-browser")), reason="chromium is not installed: apt-get install chromium")
def test_pages_open_in_a_browser_without_console_errors(site, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    for page in (site[1] / "index.html", site[1] / "cells" / "bad.cpu.colocate.html"):
        command = [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path}",
            "--dump-dom",
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "</html>" in done.stdout
        assert "CONSOLE" not in done.stderr
