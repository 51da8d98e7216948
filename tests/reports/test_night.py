"""False alarms over the cells of a night."""

import numpy as np
import pytest
from scipy import stats

from matrix.outcome import Outcome
from reports.judge import judge
from reports.night import control, false_discovery_threshold
from reports.verdict import Declared
from tests.reports.synthetic import rewards, rule
from tests.reports.test_secondary import BASE, memory

VOUCHED = Declared(assume_comparable=True)


def verdict(seed, **changes):
    return judge([memory(seed, rewards(seed, **changes))], BASE, rule(), VOUCHED)


def test_threshold_is_benjamini_and_hochbergs():
    values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0]
    assert false_discovery_threshold(values, 0.05) == 0.0095  # the example of their paper: four of fifteen
    assert false_discovery_threshold([0.03, 0.9], 0.05) == 0.0
    assert false_discovery_threshold([], 0.05) == 0.0


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_share_of_false_discoveries_is_controlled(share):
    rng, false, nights = np.random.default_rng(1), [], 400
    for _ in range(nights):
        broken = rng.uniform(size=20) ** 12
        values = np.concatenate([rng.uniform(size=180), broken])
        found = values <= false_discovery_threshold(values.tolist(), share)
        false.append(found[:180].sum() / max(found.sum(), 1))
    assert np.mean(false) <= share


def test_a_real_fault_is_an_alarm_among_hundreds_of_healthy_cells_and_a_chance_fail_is_held():
    healthy, broken = verdict(100), verdict(101, plateau=0.7)
    assert broken.outcome is Outcome.FAIL and broken.alarm_p < 1e-4
    chance = broken.model_copy(update={"alarm_p": 0.02})
    night = {f"cell-{k}": healthy for k in range(300)} | {"broken": broken, "unlucky": chance}
    found = control(night)
    assert (found.alarms, found.held, found.cells) == (("broken",), ("unlucky",), 302)
    assert "unlucky" in found.text and "chance explains" in found.text
    assert control({"unlucky": chance}).alarms == ("unlucky",)
    assert control({"healthy": healthy}).text == "no cell failed"


def test_what_chance_cannot_do_is_always_an_alarm():
    values = rewards(100)
    values[5] = float("nan")
    broken = judge([memory(100, values)], BASE, rule(), VOUCHED)
    assert broken.alarm_p == 0.0
    assert control({f"cell-{k}": verdict(100) for k in range(3)} | {"nan": broken}).alarms == ("nan",)


def test_healthy_cells_have_large_p_values():
    assert all(verdict(seed).alarm_p > 0.5 for seed in range(100, 110))
    assert judge([memory(100)], None, rule(), VOUCHED).alarm_p is None


def test_p_value_of_a_cell_counts_its_chances():
    """Four statistics at three looks: twelve chances to look bad by luck."""
    found = verdict(101, plateau=0.87)
    smallest = min(c.p_outside for c in found.comparisons)
    assert len(found.comparisons) == 4 and found.looks == 3
    assert found.alarm_p == pytest.approx(min(1.0, 12 * smallest))
    last = next(c for c in found.comparisons if c.statistic == "last")
    t = (-last.delta - last.difference) / last.se
    assert last.p_outside == pytest.approx(stats.t.sf(t, last.df))
