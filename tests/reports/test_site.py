"""The site as a build: only what changed is written, whatever was there before; odd matrices and odd files; weights of pages."""

import json
import os
import re
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from matrix.outcome import Outcome
from reports import site as site_module
from reports.compare import compare_paths
from reports.errors import ReportError
from reports.judge import judge
from reports.page.charts import Side, chart
from reports.page.payload import LARGEST, payload, rounded
from reports.readers import read_run
from reports.results import State, read_results
from reports.site import write
from reports.verdict import Declared, Verdict
from tests.matrix.tree import CELL, make_tree
from tests.reports.synthetic import SCIENCE, rewards, rule, run_dir

OTHER = "qwen3-4b.cpu.non-colocate"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Results of one cell: a run and its verdict."""
    where = tmp_path_factory.mktemp("judged")
    base = [run_dir(where / "base" / f"seed-{seed}", seed) for seed in range(5)]
    run = run_dir(where / "results" / CELL / "seed-100", 100)
    judge([run], base, rule(), Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE)).write(where / "results" / CELL / "verdicts")
    return where / "results"


@pytest.fixture
def root(judged, tmp_path):
    return shutil.copytree(judged, tmp_path / "results")


@pytest.fixture
def built(monkeypatch):
    """Keys of the cells whose pages were written, build by build."""
    seen, real = [], site_module._write_cells

    def watch(due, build, processes):
        seen.append([result.key for result, _ in due])
        return real(due, build, processes)

    monkeypatch.setattr(site_module, "_write_cells", watch)
    return seen


def note(root, cell, outcome, reason="lost", **more):
    verdict = Verdict(outcome=outcome, evidence="convergence", headline=reason, reasons=[reason], rule=rule(), candidates=[], **more)
    return verdict.write(root / cell / "verdicts")


def test_only_pages_whose_inputs_changed_are_written_again(root, tree, tmp_path, built):
    out = tmp_path / "site"
    write(root, out, matrix_root=tree)
    write(root, out, matrix_root=tree)
    note(root, OTHER, Outcome.INFRA)
    write(root, out, matrix_root=tree)
    (root / CELL / "seed-100" / "samples" / "step-000005.jsonl").write_text('{"prompt": "new"}\n')
    write(root, out, matrix_root=tree)
    write(root, out, matrix_root=tree, png="summary")
    assert built == [[CELL, OTHER], [], [OTHER], [CELL], [CELL, OTHER]]


def test_files_that_were_only_touched_or_copied_change_nothing(root, tree, tmp_path, built):
    out = tmp_path / "site"
    write(root, out, matrix_root=tree)
    later = time.time() + 100
    for path in root.rglob("*"):
        os.utime(path, (later, later))
    write(root, out, matrix_root=tree)
    assert built == [[CELL, OTHER], []]


def test_a_page_that_is_gone_comes_back_and_one_of_a_cell_that_is_gone_goes(root, tree, tmp_path, built):
    out = tmp_path / "site"
    note(root, "passing.cpu.by", Outcome.INFRA)
    write(root, out, matrix_root=tree)
    (out / "cells" / f"{CELL}.json").unlink()
    shutil.rmtree(root / "passing.cpu.by")
    write(root, out, matrix_root=tree)
    assert built[1] == [CELL]
    assert sorted(path.stem for path in (out / "cells").glob("*.html")) == sorted([CELL, OTHER])
    assert (out / "cells" / f"{CELL}.json").is_file()


@pytest.mark.parametrize("name", ["state.msgpack", "heads.msgpack"])
@pytest.mark.parametrize("content", [b"", b"\x93\x01", b"{}"])
def test_a_damaged_cache_is_as_good_as_none(root, tree, tmp_path, name, content):
    out = tmp_path / "site"
    write(root, out, matrix_root=tree)
    before = (out / "cells" / f"{CELL}.json").read_bytes()
    (out / ".cache" / name).write_bytes(content)
    write(root, out, matrix_root=tree)
    assert json.loads((out / "cells" / f"{CELL}.json").read_bytes())["curves"] == json.loads(before)["curves"]


def test_two_builds_of_the_same_results_are_equal_but_for_the_time(root, tree, tmp_path):
    now = datetime.now(UTC)
    for name in ("a", "b"):
        write(root, tmp_path / name, matrix_root=tree, now=now, processes=1)
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file() and ".cache" not in path.parts:
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path


def test_processes_write_what_one_process_writes(root, tree, tmp_path, monkeypatch):
    monkeypatch.setattr(site_module, "PARALLEL_FROM", 1)
    now = datetime.now(UTC)
    write(root, tmp_path / "many", matrix_root=tree, now=now, processes=2)
    write(root, tmp_path / "one", matrix_root=tree, now=now, processes=1)
    assert (tmp_path / "many" / "cells" / f"{CELL}.html").read_bytes() == (tmp_path / "one" / "cells" / f"{CELL}.html").read_bytes()


def test_an_expired_quarantine_is_shown_and_the_cell_counts_again(root, tree, tmp_path):
    (tree / "quarantine.yaml").write_text(
        f"quarantined:\n  - {{cell: {CELL}, owner: ada, reason: flaky, issue: I-1, expires: 2020-01-01}}\n"
        f"  - {{cell: {OTHER}, owner: bob, reason: broken, issue: I-2, expires: 2099-01-01}}\n"
    )
    note(root, CELL, Outcome.FAIL)
    write(root, tmp_path / "site", matrix_root=tree)
    rows = {row["cell"]: row for row in json.loads((tmp_path / "site" / "index.json").read_text())["cells"]}
    assert (rows[CELL]["state"], rows[CELL]["disposition"]) == ("failed", "required")
    assert rows[CELL]["remark"] == "the quarantine expired on 2020-01-01 (owner ada, issue I-1)"
    assert (rows[OTHER]["state"], rows[OTHER]["owner"], rows[OTHER]["expires"]) == ("quarantined", "bob", "2099-01-01")
    assert "the quarantine expired on 2020-01-01" in (tmp_path / "site" / "index.html").read_text()


def test_a_cell_that_broke_says_since_when_and_how_to_find_the_commit(root, tree, tmp_path):
    first = json.loads(next((root / CELL / "verdicts").iterdir()).read_text())
    for number, (outcome, sha) in enumerate((("PASS", "a" * 40), ("FAIL", "b" * 40))):
        first["created"] = (datetime.now(UTC) + timedelta(seconds=number)).isoformat()
        first["outcome"] = outcome
        first["candidates"][0]["provenance"]["commit"] = sha
        (root / CELL / "verdicts" / f"20991231T00000{number}.json").write_text(json.dumps(first))
    write(root, tmp_path / "site", matrix_root=tree)
    text = (tmp_path / "site" / "cells" / f"{CELL}.html").read_text()
    assert f"good at {'a' * 12}" in text
    assert f"bad since {'b' * 12}" in text
    assert f"python -m reports bisect {root} {CELL}" in text
    assert json.loads((tmp_path / "site" / "cells" / f"{CELL}.json").read_text())["bad_range"] == {
        "good": "a" * 40,
        "bad": "b" * 40,
        "text": re.sub(r"<[^>]+>", "", re.search(r"good at [^<]*\)", text)[0]).removesuffix(". "),
    }


def test_links_of_a_run_are_links_only_where_they_are_web_addresses(root, tree, tmp_path):
    record = {"links": {"build": "https://ci.example/builds/7", "tracker": "javascript:alert(1)"}}
    (root / CELL / "seed-100" / "runner.json").write_text(json.dumps(record))
    (root / CELL / "seed-100" / "stdout.log").write_text("log\n")
    write(root, tmp_path / "site", matrix_root=tree)
    text = (tmp_path / "site" / "cells" / f"{CELL}.html").read_text()
    assert 'href="https://ci.example/builds/7"' in text
    assert 'href="javascript' not in text
    assert f'href="../../results/{CELL}/seed-100/stdout.log"' in text
    write(root, tmp_path / "site", matrix_root=tree, results_url="https://files.example/night 7/")
    assert f'href="https://files.example/night 7/{CELL}/seed-100/stdout.log"' in (tmp_path / "site" / "cells" / f"{CELL}.html").read_text()


def test_a_folder_with_a_hostile_name_is_shown_as_text(root, tree, tmp_path):
    name = '"><script>alert(1)</script>'.replace("/", "-")
    note(root, name, Outcome.FAIL, reason="<b>&amp;")
    write(root, tmp_path / "site", matrix_root=tree)
    for page in (tmp_path / "site").rglob("*.html"):
        assert "<script>alert" not in page.read_text()
        assert "<b>&amp;" not in page.read_text()


def test_a_long_heavy_run_keeps_its_page_below_the_limit(tree, tmp_path):
    steps = 20_000
    runs = []
    for seed in (1, 2, 3):
        path = tmp_path / f"seed-{seed}"
        path.mkdir()
        values = np.random.default_rng(seed).normal(size=(steps, 30))
        with (path / "metrics.jsonl").open("w") as out:
            for step, row in enumerate(values.tolist()):
                out.write(json.dumps({"step": step, "metrics": {f"m/{number}": value for number, value in enumerate(row)}}) + "\n")
        (path / "manifest.json").write_text(json.dumps({"seed": seed}))
        runs.append(path)
    index = compare_paths(runs, tmp_path / "out", png=False)
    assert index.stat().st_size <= LARGEST
    assert "Long lines are drawn by the lowest and highest value" in index.read_text()


def test_numbers_keep_five_digits_and_nothing_becomes_zero():
    values = np.array([0.0, 1 / 3, -123456.7, 1e-12, 9.99999e9, 1e300, np.nan, np.inf, 5e-324])
    found = rounded(values)
    assert found[:6] == [0.0, 0.33333, -123460.0, 1e-12, 10.0e9, 1e300]
    assert found[6:8] == [None, None]
    assert found[8] == pytest.approx(5e-324)
    assert found[8] != 0.0


def test_training_time_is_the_sum_of_step_times_and_lacking_where_a_step_has_none(tmp_path):
    run = read_run(run_dir(tmp_path / "a", 1))
    drawn = payload([chart("rollout/reward_mean", Side([run]), Side([]))])
    hours = drawn["ts"][drawn["figures"][0]["series"][0]["t"]]
    assert hours == pytest.approx(np.cumsum(run.curves["perf/step_s"].values) / 3600, rel=1e-4)
    del run.curves["perf/step_s"]
    assert payload([chart("rollout/reward_mean", Side([run]), Side([]))])["figures"][0]["series"][0]["t"] is None


def test_a_gap_in_a_curve_is_no_value(tmp_path):
    values = rewards(1)
    values[3] = float("nan")
    run = read_run(run_dir(tmp_path / "a", 1, values))
    line = payload([chart("rollout/reward_mean", Side([run]), Side([]))])["figures"][0]["series"][0]
    assert line["y"][3] is None
    assert line["bad"] == [3, "nan"]


def test_an_unknown_kind_of_picture_is_one_line(root, tree, tmp_path):
    with pytest.raises(ReportError, match="--png some: one of none, summary, all"):
        write(root, tmp_path / "site", matrix_root=tree, png="some")


def test_every_figure_has_its_png_where_all_are_asked_for(root, tree, tmp_path):
    write(root, tmp_path / "site", matrix_root=tree, png="all")
    cells = tmp_path / "site" / "cells"
    figures = json.loads((cells / f"{CELL}.json").read_text())["curves"]["figures"]
    text = (cells / f"{CELL}.html").read_text()
    for figure in figures:
        name = f"{CELL}.{figure['id']}.png"
        assert (cells / name).read_bytes().startswith(b"\x89PNG")
        assert f'href="{name}"' in text


def test_states_of_the_page_are_those_of_the_results(root, tree):
    found = {result.id: result.state for result in read_results(root, tree)}
    assert found == {CELL: State.STALE, OTHER: State.NOT_RUN}


def test_the_kept_plotting_library_is_the_published_one():
    from hashlib import sha256

    from reports.page.render import ASSETS

    text = (Path(__file__).parents[2] / "docs" / "pages.md").read_text()
    for name in ("uPlot.iife.min.js", "uPlot.min.css"):
        assert f"`{sha256((ASSETS / name).read_bytes()).hexdigest()}`" in text
    assert "MIT" in (ASSETS / "uPlot.LICENSE").read_text()
