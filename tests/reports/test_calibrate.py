"""The operating characteristic: resampled curves are like the stored ones, and rates are what repeated judging gives."""

import json
from pathlib import Path

import numpy as np
import pytest

from matrix.rule import Exactness, Windows
from reports.calibrate import fitted, operating_characteristic
from reports.calibrate.resample import fit
from reports.calibrate.scenarios import NOISIER, SCENARIOS
from reports.calibrate.table import as_markdown
from reports.errors import ReportError
from reports.readers import read_runs
from reports.recipes import Held, shipped
from reports.stats.summary import grid, summarise
from reports.verdict import Declared
from tests.reports.synthetic import jsonl, rewards, rule


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return read_runs([jsonl(root / f"{seed}.jsonl", rewards(seed)) for seed in range(12)])


@pytest.fixture(scope="module")
def found(runs):
    return operating_characteristic(runs, rule(), trials=400)


def rate(found, name, model="resampled", size=None):
    return found.rates[model][size or found.runs][name]


def test_resampled_curves_spread_as_the_stored_ones_do():
    stored = np.array([rewards(seed) for seed in range(40)])
    at = grid(np.arange(100), rule(), 0)
    drawn = fit(stored).draw(np.random.default_rng(0), (1, 4000))[0]
    real, made = summarise(stored, at), summarise(drawn, at)
    for name in ("first", "last", "whole"):
        assert made[name].mean() == pytest.approx(real[name].mean(), abs=0.003)
        assert made[name].std() == pytest.approx(real[name].std(ddof=1), rel=0.3)


@pytest.mark.parametrize("model", ["resampled", "fitted"])
def test_healthy_passes_and_faults_do_not(found, model):
    assert rate(found, "healthy", model).passed[0] >= {"resampled": 0.95, "fitted": 0.8}[model]
    for name in ("plateau worse by 2 δ", "learning 2 × slower", "late collapse by half", "no learning"):
        assert rate(found, name, model).passed[-1] == 0, name
        assert rate(found, name, model).failed[0] >= 0.95, name
    for size in found.sizes:  # the error at δ is α whatever the size of the baseline
        assert rate(found, "plateau worse by δ", model, size).passed[-1] <= 0.07
    assert rate(found, "plateau better by 2 δ", model).failed[0] >= 0.8
    assert rate(found, NOISIER, model).passed[-1] < rate(found, "healthy", model).passed[-1]


def test_more_baseline_runs_decide_more(found):
    assert found.sizes == (3, 5, 10, 12)
    passed = [rate(found, "healthy", size=size).passed[0] for size in found.sizes]
    assert passed == sorted(passed) and passed[0] < passed[-1]
    for least in found.least_delta.values():
        assert list(least.values()) == sorted(least.values(), reverse=True)


def test_a_fitted_model_has_the_stored_runs_spread():
    stored = np.array([rewards(seed) for seed in range(40)])
    at = grid(np.arange(100), rule(), 0)
    model = fitted.fit(stored)
    drawn = model.draw(np.random.default_rng(0), (1, 4000))[0]
    real, made = summarise(stored, at), summarise(drawn, at)
    assert model.parameters[:2] == pytest.approx((0.36, 0.93), abs=0.01)
    for name in ("first", "last", "whole"):
        assert made[name].mean() == pytest.approx(real[name].mean(), abs=0.005)
        assert made[name].std() == pytest.approx(real[name].std(ddof=1), rel=0.35)
    slow = model.draw(np.random.default_rng(0), (1, 500), stretch=2.0)[0]
    assert slow[:, 30].mean() == pytest.approx(model.mean[15], abs=0.01)
    assert np.diff(slow).std() * 3 == pytest.approx(np.diff(model.draw(np.random.default_rng(0), (1, 500), noise_factor=3.0)[0]).std(), rel=0.05)


def test_what_does_not_grow_has_no_fitted_model():
    flat = 0.5 + np.random.default_rng(0).normal(0, 0.02, (5, 100))
    assert fitted.fit(flat) is None


def test_looks_only_add(found):
    for rates in [rate(found, scenario.name, size=size) for scenario in SCENARIOS for size in found.sizes]:
        assert list(rates.passed) == sorted(rates.passed)
        assert list(rates.failed) == sorted(rates.failed)
        assert all(p + f <= 1 + 1e-9 for p, f in zip(rates.passed, rates.failed, strict=True))


def test_same_seed_same_table(runs):
    one, two = (operating_characteristic(runs, rule(), trials=100, seed=3).rates for _ in range(2))
    assert one == two


def test_table_names_every_scenario_and_warns_of_a_narrow_margin(runs, found):
    text = as_markdown(found, Held(rule(), Declared(), name="mini"))
    assert all(text.count(f"| {scenario.name} |") == 2 for scenario in SCENARIOS)
    assert all(f"B = {size}, n = 1" in text for size in (3, 5, 10, 12))
    assert "Warning" not in text
    narrow = rule(delta={"first": 0.1, "last": 0.002, "whole": 0.025, "residual": 2.0})
    text = as_markdown(operating_characteristic(runs, narrow, trials=100), Held(narrow, Declared()))
    assert "(narrow)" in text and "**Warning.** δ of the last window is 0.002, below twice the spread" in text
    silent = rule(delta={"first": 0.1, "last": 0.03, "whole": 0.025})
    assert f"| {NOISIER} | noise is not judged |" in as_markdown(operating_characteristic(runs, silent, trials=100), Held(silent, Declared()))


def test_every_shipped_recipe_is_calibrated_in_the_page():
    page = Path(__file__).parents[2] / "docs" / "verdict.md"
    text = page.read_text(encoding="utf-8")
    assert shipped()
    for name in shipped():
        assert f"<!-- calibrate {name} -->\nRecipe `{name}`: " in text


def test_what_cannot_be_calibrated_is_refused(runs):
    with pytest.raises(ReportError, match="needs 3"):
        operating_characteristic(runs[:2], rule())
    with pytest.raises(ReportError, match="the rule plans 120"):
        operating_characteristic(runs, rule(planned_steps=120))
    with pytest.raises(ReportError, match="exactness"):
        operating_characteristic(runs, rule(evidence="exactness", delta=None, windows=Windows(first=1, last=1), exactness=Exactness()))


def test_an_evaluation_every_fifth_step_is_calibrated_on_its_own_steps(tmp_path, runs):
    for seed in range(8):
        lines = [{"step": step, "metrics": {"eval/heldout/score": value} if step % 5 == 4 else {}} for step, value in enumerate(rewards(seed))]
        (tmp_path / f"{seed}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sparse = rule(metric="eval/heldout/score", windows=Windows(first=15, last=30), delta={"first": 0.2, "last": 0.06, "whole": 0.06})
    found = operating_characteristic(read_runs(sorted(tmp_path.glob("*.jsonl"))), sparse, trials=200)
    assert found.steps == 20
    assert rate(found, "healthy").passed[0] >= 0.9
    assert rate(found, "no learning").failed[0] >= 0.99


def test_runs_that_may_stop_early_are_calibrated_on_the_steps_they_all_made(tmp_path):
    stopped = read_runs([jsonl(tmp_path / f"{seed}.jsonl", rewards(seed)[:60]) for seed in range(5)])
    with pytest.raises(ReportError, match="share 60 steps"):
        operating_characteristic(stopped, rule(), trials=100)
    assert operating_characteristic(stopped, rule(early_stop=True), trials=100).steps == 60
    short = read_runs([jsonl(tmp_path / f"{seed}.jsonl", rewards(seed)[:25]) for seed in range(5)])
    with pytest.raises(ReportError, match="share 25 steps"):
        operating_characteristic(short, rule(early_stop=True), trials=100)
