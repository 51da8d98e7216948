"""Bundles, imports, stores, drift, expiry, copies between baselines: what is refused, and that what is kept comes back byte for byte."""

import json
import tarfile
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from typer.testing import CliRunner

from reports.baseline import FILE, load_baseline, read_folder, read_provenance
from reports.bundle import pack, unpacked
from reports.claims import Claim, read_claim
from reports.cli import app
from reports.errors import ReportError
from reports.readers import read_run, read_runs
from reports.readers.base import Reading
from reports.record import Origin, record
from reports.store import get
from reports.verdict import Declared
from tests.reports.synthetic import CELL, SCIENCE, jsonl, rewards, rule, run_dir

REWARD = "rollout/reward_mean"
DECLARED = Declared(cell=CELL, recipe="spell-backward", science_hash=SCIENCE, reward_id="exact-match/1", reward_range=(0.0, 1.0))
CLAIM = Claim(source="x/y", commit="c0ffee", licence="MIT", hardware="8 x H100", framework="f 1.0", contributor="somebody", date="2026-07")


def healthy(root, seeds=range(5), **more):
    return [run_dir(root / f"seed-{seed}", seed, **more) for seed in seeds]


def foreign(root, seeds=range(5)):
    """Files of another program: no seed, no labels, no provenance."""
    return [jsonl(root / f"gpu-{seed}.jsonl", rewards(seed)) for seed in seeds]


def recorded(paths, into, **more):
    return record(read_runs(paths), rule(), DECLARED, into, "python -m reports baseline record", **more)


def taken(paths, into, name="gpu", **more):
    return record(read_runs(paths), rule(), Declared(assume_comparable=True), into, "", name=name, origin=Origin(claim=CLAIM), **more)


# --- provenance ---------------------------------------------------------------------------------------------------------------------------------


def test_incomplete_provenance_is_refused_and_a_claim_completes_it(tmp_path):
    with pytest.raises(ReportError, match=r"provenance is not complete: no commit, host, versions.*--provenance"):
        record(read_runs(foreign(tmp_path)), rule(), Declared(assume_comparable=True), tmp_path / "b", "", name="gpu")
    folder = taken(foreign(tmp_path), tmp_path / "b")
    told = read_provenance(folder)
    assert told.claim == CLAIM
    assert [entry.seed for entry in told.runs] == [0, 1, 2, 3, 4]
    assert told.dirty is False


@pytest.mark.parametrize("missing", ["source", "commit", "licence", "hardware", "framework", "contributor", "date"])
def test_a_claim_lacks_nothing(tmp_path, missing):
    file = tmp_path / "where.yaml"
    file.write_text("".join(f'{name}: "{value}"\n' for name, value in CLAIM.model_dump().items() if name != missing and isinstance(value, str)))
    with pytest.raises(ReportError, match=rf"where.yaml.*'{missing}' is missing"):
        read_claim(file)


def test_own_seeds_of_other_programs_are_kept_beside_the_baselines_numbers(tmp_path):
    paths = []
    for seed in range(4):
        file = jsonl(tmp_path / f"{seed}.jsonl", rewards(seed))
        file.write_text(json.dumps({"manifest": {"seed": 2115446333 + seed}}) + "\n" + file.read_text())
        paths.append(file)
    told = read_provenance(taken(paths, tmp_path / "b"))
    assert [(entry.seed, entry.source_seed) for entry in told.runs] == [(seed, 2115446333 + seed) for seed in range(4)]


def test_a_science_hash_can_be_claimed_for_runs_without_one(tmp_path):
    declared = Declared(science_hash=SCIENCE)
    origin = Origin(claim=CLAIM, science_hash=SCIENCE)
    folder = record(read_runs(foreign(tmp_path)), rule(), declared, tmp_path / "b", "", origin=origin)
    assert folder.name == SCIENCE[:12]
    assert {run.science_hash for run in read_folder(folder)} == {SCIENCE}


# --- copies, drift, expiry ----------------------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_run_in_another_baseline_is_refused(tmp_path):
    recorded(healthy(tmp_path / "cpu"), tmp_path / "b")
    with pytest.raises(ReportError, match=f"gpu-3.*is, value for value, seed-3 of the baseline {SCIENCE[:12]}"):
        taken(foreign(tmp_path), tmp_path / "b", name="other-hardware")


def test_a_worse_set_never_replaces_a_better_one(tmp_path):
    recorded(healthy(tmp_path / "old"), tmp_path / "b")
    worse = [run_dir(tmp_path / f"w{seed}", seed, rewards(seed, plateau=0.8)) for seed in range(5, 10)]
    with pytest.raises(ReportError, match="FAIL against the baseline it would replace"):
        recorded(worse, tmp_path / "b", reason="get green", approver="nobody")
    assert [run.seed for run in load_baseline(tmp_path / "b" / SCIENCE[:12])[0]] == [0, 1, 2, 3, 4]


def test_many_small_steps_are_caught_by_the_frozen_baseline(tmp_path):
    """Each replacement lies within δ of the one before; the sum does not, and the frozen one stays."""
    folder, at, refused = None, 0.93, ""
    frozen = None
    for step in range(6):
        seeds = range(step * 8, step * 8 + 8)
        runs = [run_dir(tmp_path / f"r{seed}", seed, rewards(seed, plateau=at)) for seed in seeds]
        try:
            folder = recorded(runs, tmp_path / "b", reason="a little lower", approver="somebody")
        except ReportError as error:
            refused = str(error)
            break
        told = read_provenance(folder)
        frozen = frozen or told.frozen
        assert told.frozen == frozen
        assert (told.drift != []) == (step > 0)
        at -= 0.012
    assert "FAIL against the frozen baseline" in refused
    assert step > 1
    assert [run.seed for run in read_folder(folder / frozen)] == list(range(8))


def test_diff_names_statistics_and_provenance_and_defaults_to_the_frozen_one(tmp_path):
    folder = recorded(healthy(tmp_path / "old"), tmp_path / "b")
    run = CliRunner().invoke(app, ["baseline", "diff", str(folder)])
    assert "was never replaced" in str(run.exception)
    recorded(healthy(tmp_path / "new", range(10, 16), commit="f" * 40), tmp_path / "b", reason="newer", approver="somebody")
    done = CliRunner().invoke(app, ["baseline", "diff", str(folder), "-o", str(tmp_path / "page")])
    assert done.exit_code == 0, done.output
    assert "inside" in done.output and "first window" in done.output
    assert "commits:" in done.output
    assert (tmp_path / "page" / "index.html").is_file()


def test_age_and_expiry(tmp_path):
    folder = recorded(healthy(tmp_path / "runs"), tmp_path / "b", origin=Origin(expires=date(2100, 1, 1)))
    told = read_provenance(folder)
    assert told.stale() == ""
    assert "expired on 2100-01-01" in told.stale(date(2100, 1, 2))
    listed = CliRunner().invoke(app, ["baseline", "list", str(tmp_path / "b"), "--check"])
    assert (listed.exit_code, "valid to 2100-01-01" in listed.output) == (0, True)
    old = json.loads((folder / FILE).read_text()) | {"expires": None, "date": (datetime.now(UTC) - timedelta(days=181)).isoformat()}
    (folder / FILE).write_text(json.dumps(old))
    listed = CliRunner().invoke(app, ["baseline", "list", str(tmp_path / "b"), "--check"])
    assert (listed.exit_code, "EXPIRED" in listed.output) == (1, True)


def test_a_verdict_says_that_its_baseline_has_expired_and_is_replayed_as_it_was(tmp_path):
    """A note and no outcome: the day changes nothing of what was measured."""
    from reports.judge import judge
    from reports.replay import differences, replay

    folder = recorded(healthy(tmp_path / "runs"), tmp_path / "b", origin=Origin(expires=date(2100, 1, 1)))
    candidate = run_dir(tmp_path / "seed-100", 100)
    fresh = judge([candidate], folder, rule(), DECLARED)
    told = json.loads((folder / FILE).read_text()) | {"expires": "2026-01-31"}
    (folder / FILE).write_text(json.dumps(told))
    expired = judge([candidate], [folder], rule(), DECLARED)
    assert (expired.outcome, expired.headline) == (fresh.outcome, fresh.headline)
    assert not [reason for reason in fresh.reasons if "expired" in reason]
    assert expired.reasons[-1].endswith("expired on 2026-01-31: record it anew")
    assert not list(differences(expired.model_dump(mode="json"), replay(expired).model_dump(mode="json")))


def test_constant_reference_is_no_baseline(tmp_path):
    golden = tmp_path / "golden.json"
    golden.write_text(json.dumps({"reward": {"start_step": 0, "end_step": 99, "values": {str(i): 0.0 for i in range(100)}}}))
    with pytest.raises(ReportError, match="proves nothing"):
        taken([golden], tmp_path / "b")


# --- the store ----------------------------------------------------------------------------------------------------------------------------------


def test_whole_files_go_to_a_store_and_come_back_byte_for_byte(tmp_path):
    runs = healthy(tmp_path / "runs")
    root = f"memory://store-{tmp_path.name}"
    folder = recorded(runs, tmp_path / "b", origin=Origin(store=root))
    told = read_provenance(folder)
    assert {blob.path for blob in told.files} >= {"manifest.json", "metrics.jsonl", "events.jsonl", "samples/step-000000.jsonl"}
    done = CliRunner().invoke(app, ["baseline", "fetch", str(folder), "-o", str(tmp_path / "back")])
    assert done.exit_code == 0, done.output
    for seed, run in enumerate(runs):
        for path in (run / "metrics.jsonl", run / "samples" / "step-000010.jsonl"):
            assert (tmp_path / "back" / f"seed-{seed}" / path.relative_to(run)).read_bytes() == path.read_bytes()


def test_a_file_changed_in_the_store_is_refused_and_not_left(tmp_path):
    folder = recorded(healthy(tmp_path / "runs"), tmp_path / "b", origin=Origin(store=str(tmp_path / "store")))
    blob = next(blob for blob in read_provenance(folder).files if blob.path == "metrics.jsonl")
    place = tmp_path / "store" / "sha256" / blob.sha256[:2] / blob.sha256
    place.write_text("other")
    with pytest.raises(ReportError, match="does not match its hash"):
        get(str(tmp_path / "store"), [blob], tmp_path / "back")
    assert not list((tmp_path / "back").rglob("*.jsonl"))
    place.unlink()
    with pytest.raises(ReportError, match="holds no"):
        get(str(tmp_path / "store"), [blob], tmp_path / "back")
    with pytest.raises(ReportError, match="outside the folder"):
        get(str(tmp_path / "store"), [blob.model_copy(update={"path": "../../x"})], tmp_path / "back")


def test_equal_files_are_stored_once(tmp_path):
    recorded(healthy(tmp_path / "runs"), tmp_path / "b", origin=Origin(store=str(tmp_path / "store")))
    stored = [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(stored) == len(set(stored)) < sum(1 for path in (tmp_path / "runs").rglob("*") if path.is_file())


# --- bundles ------------------------------------------------------------------------------------------------------------------------------------


def test_bundle_of_foreign_files_is_imported_end_to_end(tmp_path):
    paths = foreign(tmp_path)
    out = pack(read_runs(paths), tmp_path / "b.tar.gz", "cmd", REWARD, Reading(), CLAIM)
    with tarfile.open(out) as archive:
        names = archive.getnames()
    assert {"bundle.json", "report/index.html", "runs/0/gpu-0.jsonl", "runs/4/gpu-4.jsonl"} <= set(names)
    with unpacked(out) as (contents, runs, _):
        assert contents.claim == CLAIM
        assert [run.curves[REWARD].values.tolist() for run in runs] == [rewards(seed) for seed in range(5)]


def test_bundle_of_run_directories_keeps_manifests_and_no_checkpoint(tmp_path):
    runs = healthy(tmp_path / "runs")
    (runs[0] / "checkpoints").mkdir()
    (runs[0] / "checkpoints" / "weights").write_bytes(b"x" * 1000)
    out = pack(read_runs(runs), tmp_path / "b.tar.gz", "cmd", REWARD, Reading(), None)
    with unpacked(out) as (_, found, _):
        assert [run.seed for run in found] == [0, 1, 2, 3, 4]
        assert [run.sha for run in found] == [run.sha for run in read_runs(runs)]
    with tarfile.open(out) as archive:
        assert not [name for name in archive.getnames() if "checkpoints" in name]


def test_bundle_of_several_runs_in_one_file_holds_it_once(tmp_path):
    rows = [f"{seed},{step},{value}" for seed in range(5) for step, value in enumerate(rewards(seed))]
    file = tmp_path / "all.csv"
    file.write_text("seed,step,reward\n" + "\n".join(rows) + "\n")
    out = pack(read_runs([file]), tmp_path / "b.tar.gz", "cmd", REWARD, Reading(), CLAIM)
    with unpacked(out) as (contents, runs, _):
        assert {run.path for run in contents.runs} == {"runs/0/all.csv"}
        assert [run.seed for run in runs] == [0, 1, 2, 3, 4]


def test_bundle_remembers_how_its_files_are_read(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("n,score,reward\n" + "".join(f"{step},{value},0\n" for step, value in enumerate(rewards(1))))
    reading = Reading("csv", "n", {REWARD: "score"})
    out = pack([read_run(file, reading)], tmp_path / "b.tar.gz", "cmd", REWARD, reading, CLAIM)
    with unpacked(out) as (_, runs, _):
        np.testing.assert_array_equal(runs[0].curves[REWARD].values, rewards(1))


def test_unreadable_or_unexplained_runs_are_not_bundled(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    for paths, words in (([tmp_path / "empty.jsonl"], "empty"), (foreign(tmp_path), "provenance is not complete")):
        with pytest.raises(ReportError, match=words):
            pack(read_runs(paths), tmp_path / "b.tar.gz", "cmd", REWARD, Reading(), None)
    assert not (tmp_path / "b.tar.gz").exists()


def _repacked(tmp_path, bundle, change):
    folder = tmp_path / "open"
    with tarfile.open(bundle) as archive:
        archive.extractall(folder, filter="data")
    change(folder)
    out = tmp_path / "changed.tar.gz"
    with tarfile.open(out, "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() or path.is_symlink():
                archive.add(path, str(path.relative_to(folder)))
    return out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "runs/0/gpu-0.jsonl").write_text("x"), "does not match its hash"),
        (lambda folder: (folder / "more").write_text("x"), "are not those that bundle.json lists"),
        (lambda folder: (folder / "runs/0/gpu-0.jsonl").unlink(), "are not those that bundle.json lists"),
        (lambda folder: (folder / "bundle.json").unlink(), "holds no bundle.json"),
        (lambda folder: (folder / "bundle.json").write_text("{}"), "Field required"),
        (lambda folder: (folder / "link").symlink_to("/etc/passwd"), "holds links"),
    ],
)
def test_a_changed_bundle_is_refused(tmp_path, change, words):
    bundle = pack(read_runs(foreign(tmp_path)), tmp_path / "b.tar.gz", "cmd", REWARD, Reading(), CLAIM)
    with pytest.raises(ReportError, match=words), unpacked(_repacked(tmp_path, bundle, change)):
        pass


@pytest.mark.parametrize("data", [b"", b"no tar", None])
def test_what_is_no_bundle_is_refused(tmp_path, data):
    bundle = pack(read_runs(foreign(tmp_path)), tmp_path / "b.tar.gz", "cmd", REWARD, Reading(), CLAIM)
    bundle.write_bytes(bundle.read_bytes()[:5000] if data is None else data)
    with pytest.raises(ReportError, match="no whole bundle"), unpacked(bundle):
        pass


def test_record_refuses_where_replace_is_meant_and_replace_asks_for_reason_and_approver(tmp_path):
    runs = [str(path) for path in foreign(tmp_path)]
    (tmp_path / "where.yaml").write_text("".join(f'{name}: "{value}"\n' for name, value in CLAIM.model_dump().items() if isinstance(value, str)))
    (tmp_path / "rule.yaml").write_text(
        "sided: two\nplanned_steps: 100\nwindows: {first: 5, last: 25}\ndelta: {first: 0.1, last: 0.03, whole: 0.025}\n"
        "delta_reason: x\nexactness: {weight_digests: false}\n"
    )
    said = ["--recipe", str(tmp_path / "rule.yaml"), "--provenance", str(tmp_path / "where.yaml"), "--as", "gpu", "-o", str(tmp_path / "b")]
    assert CliRunner().invoke(app, ["baseline", "record", *runs, *said]).exit_code == 0
    assert "replacing it" in str(CliRunner().invoke(app, ["baseline", "record", *runs, *said]).exception)
    assert CliRunner().invoke(app, ["baseline", "replace", *runs, *said, "--reason", "x"]).exit_code == 2
    newer = [str(path) for path in foreign(tmp_path / "n", range(10, 16))]
    done = CliRunner().invoke(app, ["baseline", "replace", *newer, *said, "--reason", "x", "--approver", "y"])
    assert (done.exit_code, "review page" in done.output) == (0, True), done.output
