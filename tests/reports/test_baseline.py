"""What becomes a baseline, what is refused, and what replacing one leaves behind."""

import json

import pytest

from matrix.outcome import Outcome
from reports.baseline import load_baseline, read_folder, read_provenance
from reports.errors import ReportError
from reports.judge import judge
from reports.readers import read_runs
from reports.record import record
from reports.verdict import Declared
from tests.reports.synthetic import CELL, SCIENCE, rewards, rule, run_dir

DECLARED = Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE, reward_id="exact-match/1", reward_range=(0.0, 1.0))


def healthy(root, seeds=range(5)):
    return [run_dir(root / f"seed-{seed}", seed) for seed in seeds]


def recorded(paths, into, **more):
    return record(read_runs(paths), rule(), DECLARED, into, "python -m reports baseline record", **more)


def test_recorded_baseline_reads_back_as_what_was_measured(tmp_path):
    runs = healthy(tmp_path / "runs")
    folder = recorded(runs, tmp_path / "baselines")
    assert folder.name == SCIENCE[:12]
    found, path = load_baseline(folder)
    assert path == str(folder)
    assert [run.seed for run in found] == [0, 1, 2, 3, 4]
    assert [run.sha for run in found] == [run.sha for run in read_runs(runs)]
    assert found[0].curves["rollout/reward_mean"].values.tolist() == rewards(0)
    provenance = read_provenance(folder)
    assert provenance.science_hash == SCIENCE
    assert (provenance.cell, provenance.recipe, provenance.dirty, provenance.machine["hostname"]) == (CELL, "spell-backward", False, "host-a")
    assert provenance.command.startswith("python -m reports")


def test_slimmed_baseline_judges_as_the_whole_one_does(tmp_path):
    runs = healthy(tmp_path / "runs")
    folder = recorded(runs, tmp_path / "baselines")
    candidate = run_dir(tmp_path / "seed-100", 100)
    whole, slim = judge([candidate], runs, rule(), DECLARED), judge([candidate], folder, rule(), DECLARED)
    assert whole.outcome is slim.outcome is Outcome.PASS
    assert whole.comparisons == slim.comparisons
    assert [run.sha for run in whole.baseline] == [run.sha for run in slim.baseline]


def test_edited_baseline_is_refused(tmp_path):
    folder = recorded(healthy(tmp_path / "runs"), tmp_path / "baselines")
    file = folder / "seed-2" / "metrics.jsonl"
    file.write_text(file.read_text().replace("0.9", "0.8", 1))
    with pytest.raises(ReportError, match="do not match the hash"):
        read_folder(folder)


def test_baseline_folder_that_is_not_there_is_no_baseline_and_a_missing_run_an_error(tmp_path):
    assert load_baseline(tmp_path / "baselines" / SCIENCE[:12]) == ([], "")
    with pytest.raises(ReportError, match="no such run"):
        load_baseline([tmp_path / "seed-3"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: run_dir(path, 7, rewards(7)[:60]), "60/100 steps"),
        (lambda path: run_dir(path, 7, [float("nan"), *rewards(7)[1:]]), "is nan at step 0"),
        (lambda path: run_dir(path, 7, [0.36, 0.35] * 50), "learning is more than"),
        (lambda path: run_dir(path, 7, rewards(7, plateau=0.8)), "stands apart from the other 5"),
        (lambda path: run_dir(path, 7, rewards(3)), "a copy is no second measurement"),
        (lambda path: run_dir(path, 7, seed=100), "baselines take seeds 0 to 99"),
        (lambda path: run_dir(path, 7, seed=3), "seed 3 is there 2 times"),
        (lambda path: run_dir(path, 7, labels={"science_hash": "b" * 64, "cell": CELL}), "science hash bbbbbbbbbbbb"),
    ],
)
def test_refused(tmp_path, make, words):
    runs = [*healthy(tmp_path / "runs"), make(tmp_path / "bad")]
    with pytest.raises(ReportError, match="not recorded") as error:
        recorded(runs, tmp_path / "baselines")
    assert words in str(error.value)
    assert not (tmp_path / "baselines").exists()


def test_run_out_of_its_bands_is_refused(tmp_path):
    runs = healthy(tmp_path / "runs")
    (runs[2] / "events.jsonl").write_text("")
    with pytest.raises(ReportError, match="no weight_sync event"):
        record(read_runs(runs), rule(exactness={"weight_digests": True}), DECLARED, tmp_path / "baselines", "")


def test_run_that_a_verdict_calls_fail_is_refused(tmp_path):
    cell = tmp_path / "cell"
    runs = healthy(cell)
    verdict = judge([runs[0]], runs[1:], rule(), DECLARED)  # a seed below 100 as a candidate: INVALID
    assert verdict.outcome is Outcome.INVALID
    verdict.write(cell / "verdicts")
    with pytest.raises(ReportError, match="judged INVALID"):
        recorded(runs, tmp_path / "baselines")


def test_replacing_needs_reason_and_approver_and_keeps_the_old_for_review(tmp_path):
    folder = recorded(healthy(tmp_path / "runs"), tmp_path / "baselines")
    before = read_provenance(folder)
    newer = healthy(tmp_path / "newer", range(10, 16))
    for more in ({}, {"reason": "new optimizer"}, {"approver": "someone"}):
        with pytest.raises(ReportError, match="--reason and --approver"):
            recorded(newer, tmp_path / "baselines", **more)
    assert read_provenance(folder) == before
    recorded(newer, tmp_path / "baselines", reason="new optimizer", approver="someone")
    after = read_provenance(folder)
    assert after.replaced is not None
    assert (after.replaced.reason, after.replaced.approver) == ("new optimizer", "someone")
    assert after.replaced.previous == [entry.sha for entry in before.runs]
    assert [run.seed for run in read_folder(folder)] == [10, 11, 12, 13, 14, 15]
    (aside,) = (folder / "replaced").iterdir()
    assert [run.seed for run in read_folder(aside)] == [0, 1, 2, 3, 4]
    page = (aside / "index.html").read_text()
    assert "old baseline" in page
    assert "seed-10" in page
    assert not (folder / "seed-0").exists()


def test_a_failed_replacement_changes_nothing(tmp_path):
    folder = recorded(healthy(tmp_path / "runs"), tmp_path / "baselines")
    with pytest.raises(ReportError):
        recorded([run_dir(tmp_path / "bad", 7, rewards(7)[:50])], tmp_path / "baselines", reason="get green", approver="nobody")
    assert len(read_folder(folder)) == 5
    assert not (folder / "replaced").exists()


def test_baseline_json_is_plain_json(tmp_path):
    folder = recorded(healthy(tmp_path / "runs"), tmp_path / "baselines")
    found = json.loads((folder / "baseline.json").read_text())
    assert [entry["path"] for entry in found["runs"]] == [f"seed-{seed}" for seed in range(5)]
