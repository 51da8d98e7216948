"""The operating characteristic: resampled curves are like the stored ones, and rates are what repeated judging gives."""

import json

import numpy as np
import pytest

from matrix.rule import Exactness, Windows
from reports.calibrate import operating_characteristic
from reports.calibrate.resample import fit
from reports.calibrate.scenarios import SCENARIOS
from reports.calibrate.table import as_markdown
from reports.errors import ReportError
from reports.readers import read_runs
from reports.recipes import Held
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


def rate(found, name):
    return next(rates for scenario, rates in zip(found.scenarios, found.rates, strict=True) if scenario.name == name)


def test_resampled_curves_spread_as_the_stored_ones_do():
    stored = np.array([rewards(seed) for seed in range(40)])
    at = grid(np.arange(100), rule(), 0)
    drawn = fit(stored).draw(np.random.default_rng(0), (1, 4000))[0]
    real, made = summarise(stored, at), summarise(drawn, at)
    for name in ("first", "last", "whole"):
        assert made[name].mean() == pytest.approx(real[name].mean(), abs=0.003)
        assert made[name].std() == pytest.approx(real[name].std(ddof=1), rel=0.3)


def test_healthy_passes_and_faults_do_not(found):
    assert rate(found, "healthy").passed[0] >= 0.97
    for name in ("plateau worse by 4 δ", "learning 2 × slower", "late collapse by half", "no learning", "step noise × 4"):
        assert rate(found, name).passed[-1] == 0, name
        assert rate(found, name).failed[0] >= 0.95, name
    assert rate(found, "plateau worse by δ").passed[-1] <= 0.06
    assert rate(found, "plateau better by 2 δ").failed[0] >= 0.8


def test_better_passes_one_sided(runs):
    found = operating_characteristic(runs, rule(sided="one"), trials=200)
    assert rate(found, "plateau better by 2 δ").passed[0] >= 0.95


def test_looks_only_add(found):
    for rates in found.rates:
        assert list(rates.passed) == sorted(rates.passed)
        assert list(rates.failed) == sorted(rates.failed)
        assert all(p + f <= 1 + 1e-9 for p, f in zip(rates.passed, rates.failed, strict=True))


def test_same_seed_same_table(runs):
    one, two = (operating_characteristic(runs, rule(), trials=100, seed=3).rates for _ in range(2))
    assert one == two


def test_table_names_every_scenario_and_warns_of_a_narrow_margin(runs, found):
    text = as_markdown(found, Held(rule(), Declared(), name="mini"))
    assert all(f"| {scenario.name} |" in text for scenario in SCENARIOS)
    narrow = rule(delta={"first": 0.1, "last": 0.002, "whole": 0.025, "residual": 2.0})
    assert "(narrow)" in as_markdown(operating_characteristic(runs, narrow, trials=100), Held(narrow, Declared()))


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
