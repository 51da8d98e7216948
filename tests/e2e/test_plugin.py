"""`pytest -m cpu_e2e` as a person runs it, on a copied declaration tree and the fake training."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from matrix.loader import ROOT
from matrix.outcome import Outcome
from tests.e2e.conftest import FAKE, NPU_CELL, short_tree
from tests.matrix.tree import CELL, CELLS, edit

OTHER = "qwen3-4b.cpu.non-colocate"
CHECKOUT = ROOT.parent


def start(tree: Path, *arguments: str) -> subprocess.Popen[str]:
    place = tree.parent.parent
    command = [sys.executable, "-m", "pytest", f"--matrix={tree}", f"--results={place / 'results'}", f"--report={place / 'report'}"]
    command += [f"--train-command={shlex.join(FAKE)}", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "TMPDIR": str(place)}  # leases of its own
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=CHECKOUT, env=environment)


def pytest_run(tree: Path, *arguments: str) -> tuple[int, str]:
    process = start(tree, *arguments)
    out, _ = process.communicate(timeout=120)
    return process.returncode, out


def pytest_here(tree: Path, *arguments: str) -> tuple[int, str]:
    """The same in this process: for sessions that run nothing."""
    place, out = tree.parent.parent, StringIO()
    options = [f"--matrix={tree}", f"--results={place / 'results'}", f"--report={place / 'report'}", "-p", "no:cacheprovider", "--capture=no"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        patch.chdir(CHECKOUT)
        patch.setenv("TMPDIR", str(place))
        code = pytest.main([*options, *arguments])
    return int(code), out.getvalue()


def baseline(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    place = tree.parent.parent
    command = [
        sys.executable,
        "-m",
        "e2e",
        "baseline",
        CELL,
        "--matrix",
        str(tree),
        "--results",
        str(place / "baseline-runs"),
        "--train-command",
        shlex.join(FAKE),
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=CHECKOUT, env={**os.environ, "TMPDIR": str(place)})


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a baseline of six runs, and these runs beside it; made once."""
    tree = short_tree(tmp_path_factory.mktemp("recorded"))
    done = baseline(tree, "--seeds", "0-5")
    assert done.returncode == 0, done.stderr
    return tree


@pytest.fixture
def with_baseline(tree: Path, recorded: Path) -> Path:
    shutil.copytree(recorded / "baselines", tree / "baselines")
    return tree


@pytest.mark.timeout(120)
def test_the_smoke_tier_from_baseline_to_verdict_and_report(with_baseline: Path):
    code, out = pytest_run(with_baseline, "-m", "cpu_e2e")
    assert code == 0, out
    assert "2 passed" in out
    assert f"{CELL} seed 100  finished: 40/40 steps" in out  # progress is visible although pytest captures output
    table = [line for line in out.splitlines() if "  PASS  " in line]
    assert [line.split()[0] for line in table] == [CELL, OTHER]
    report = next(line for line in out.splitlines() if line.startswith("report: "))
    assert Path(report.removeprefix("report: ")).is_file()


@pytest.mark.timeout(120)
def test_a_fault_fails_its_cell_alone_with_the_reasons_and_the_exit_code_of_the_outcome(with_baseline: Path, behave: Callable[..., None]):
    behave(seed_100="fault")
    code, out = pytest_run(with_baseline, "-m", "cpu_e2e", "--cell", CELL)
    assert code == 1, out
    assert f"{CELL}: FAIL" in out
    assert "Traceback" not in out


def test_without_a_baseline_the_exit_code_says_so(tree: Path):
    code, out = pytest_run(tree, "-m", "cpu_e2e", "--cell", CELL)
    assert code == 15, out
    assert f"{CELL}: NO_BASELINE" in out


def test_a_lost_run_is_incomplete_and_outranks_a_missing_baseline(tree: Path, behave: Callable[..., None]):
    behave(seed_100="killed at 5")
    code, out = pytest_run(tree, "-m", "cpu_e2e")
    assert code == 11, out
    assert "5/40 steps, killed by SIGKILL" in out


def test_a_quarantined_cell_is_shown_and_does_not_set_the_exit_code(tree: Path):
    entry = f"quarantined:\n- {{cell: {CELL}, owner: weights team, reason: flaky, issue: '#12', expires: 2999-01-01}}\n"
    (tree / "quarantine.yaml").write_text(entry)
    code, out = pytest_run(tree, "-m", "cpu_e2e", "--cell", CELL)
    assert code == 0, out
    assert "NO_BASELINE (quarantined)" in out
    assert "quarantined until 2999-01-01 by weights team (#12): flaky" in out


def test_list_cells_prints_ids_and_runs_nothing(tree: Path):
    code, out = pytest_here(tree, "-m", "cpu_e2e", "--list-cells")
    assert (code, out.split()) == (0, [CELL, OTHER])


def test_without_the_hardware_every_cell_is_not_run_with_the_reason_and_the_exit_code_says_so(npu_tree: Path):
    code, out = pytest_run(npu_tree, "-m", "npu_e2e", "-n", "2")
    assert code == Outcome.NOT_RUN.exit_code == 16, out
    assert "3 skipped" in out
    rows = [line.split() for line in out.splitlines() if "  NOT_RUN  " in line]
    assert [row[0] for row in rows] == [NPU_CELL, "qwen3-4b.a2.colocate@two-nodes", "qwen3-4b.a2.non-colocate"]
    assert out.count("no Atlas 800T A2 here: there is no /dev/davinci<N>") >= 3
    assert "Traceback" not in out


def test_plan_prints_what_would_run_and_runs_nothing(npu_tree: Path):
    code, out = pytest_here(npu_tree, "-m", "npu_e2e or cpu_e2e", "--plan")
    assert code == 0, out
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [NPU_CELL, "qwen3-4b.a2.colocate@two-nodes", "qwen3-4b.a2.non-colocate", CELL, OTHER]
    assert "8 devices   seeds 100 (at most 3)  NOT_RUN here: no Atlas 800T A2 here" in lines[0]
    assert "spell-backward (convergence)" in lines[3]
    assert lines[-1].startswith("5 cells: 2 would run here, about ")
    assert not (npu_tree.parent.parent / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-m", "cpu_e2"), "no marker 'cpu_e2'; nearest: cpu_e2e"),
        (("-m", "npu_e2e"), "no cell is declared for npu_e2e; declared are qwen3-4b.cpu.non-colocate"),
        (("-m", "npu_e2e", "--tier", "smoke"), "no cell is declared for npu_e2e in tier 'smoke'; declared are qwen3-4b.cpu.non-colocate"),
        (("-m", "cpu_e2e", "--cell", "qwen3-4b.cpu.colocated"), "selects nothing; nearest: qwen3-4b.cpu.colocate"),
        (("-m", "cpu_e2e", "--tier", "smoek"), "no tier 'smoek' is declared; nearest: smoke"),
        (("-m", "cpu_e2e", "-k", "non"), f"not collected: {CELL}"),
        (("-m", "cpu_e2e", "-k", "non", "-n", "2"), f"not collected: {CELL}"),
        (("-m", "cpu_e2e", "--seeds", "1OO"), "'1OO' in '1OO' is not a seed or a range"),
        (("-m", "cpu_e2e", "--seeds", ""), "'' in '' is not a seed or a range"),
        (("-m", "cpu_e2e", "--seeds", "5"), "seed 5 of qwen3-4b.cpu.colocate is a baseline's: candidates take 100 and up"),
        (("-m", "cpu_e2e", "--no-judge", "--judge-only"), "together leave nothing to do"),
    ],
)
def test_what_does_not_run_what_was_asked_is_a_usage_error(tree: Path, arguments: tuple[str, ...], said: str):
    code, out = (pytest_run if "-n" in arguments else pytest_here)(tree, *arguments)
    assert code == pytest.ExitCode.USAGE_ERROR, out
    assert said in out
    assert "INTERNALERROR" not in out


def test_faults_of_the_declarations_end_the_session_before_anything_runs(tree: Path):
    edit(tree, CELLS, "[smoke, nightly]", "[smok, nightly]")
    code, out = pytest_here(tree, "-m", "cpu_e2e")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "no tier 'smok'; nearest: smoke" in out


@pytest.mark.timeout(120)
def test_two_cells_run_at_once_under_xdist(tree: Path):
    code, out = pytest_run(tree, "-m", "cpu_e2e", "-n", "2")
    assert code == 15, out
    records = [json.loads((tree.parent.parent / "results" / cell / "seed-100" / "runner.json").read_text()) for cell in (CELL, OTHER)]
    assert max(record["started"] for record in records) < min(record["ended"] for record in records), "one after the other"
    devices = [set(record["leased_devices"]) for record in records]
    assert not devices[0] & devices[1]
    assert f"{CELL} seed 100  finished: 40/40 steps" in out


@pytest.mark.timeout(120)
def test_a_lost_worker_loses_its_cell_alone_and_leaves_nothing_behind(tree: Path, behave: Callable[..., None]):
    behave({f"{CELL}/seed-100": "assassin"})
    code, out = pytest_run(tree, "-m", "cpu_e2e", "-n", "2")
    assert code == Outcome.INCOMPLETE.exit_code, out
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("qwen3") and " seeds " in line}
    assert "INCOMPLETE" in rows[CELL]
    assert "the pytest worker that ran it was lost" in rows[CELL]
    assert "NO_BASELINE" in rows[OTHER]
    results = tree.parent.parent / "results" / CELL
    assert len(list(results.glob("verdicts/*.json"))) == 1
    pid = int((results / "seed-100" / "child.pid").read_text())
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, "the run outlived its worker"
        time.sleep(0.1)


def test_cells_that_the_session_did_not_come_to_are_not_run(tree: Path):
    code, out = pytest_run(tree, "-m", "cpu_e2e", "-x")
    assert code == Outcome.NO_BASELINE.exit_code, out
    rows = [line for line in out.splitlines() if line.startswith("qwen3") and " seeds " in line]
    assert len(rows) == 2
    assert "NOT_RUN" in rows[1]
    assert "the session ended before its turn" in rows[1]


def test_an_ordinary_session_collects_no_cell_and_loads_nothing_of_the_matrix(tmp_path: Path):
    heavy = "m.split('.')[0] in ('matrix', 'reports', 'torch') or m.startswith('e2e.') and m not in ('e2e.plugin', 'e2e.markers')"
    (tmp_path / "test_it.py").write_text(f"import sys\ndef test_it():\n    assert not [m for m in sys.modules if {heavy}]\n")
    command = [sys.executable, "-m", "pytest", "-p", "e2e.plugin", "-q", "-p", "no:cacheprovider", str(tmp_path), "-m", "not slow and not cpu_e2e"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_session_of_cells_does_not_import_hypothesis(tree: Path):
    """Its plugin's summary would: a second or two of every session, for nothing."""
    script = f"""
import sys, pytest
code = pytest.main(['-p', 'no:cacheprovider', '--matrix={tree}', '--results={tree}/r', '--report={tree}/p', '--cell', '{CELL}', '--judge-only'])
print('code', int(code), 'hypothesis' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=CHECKOUT)
    assert done.stdout.splitlines()[-1] == "code 16 False", done.stdout


def test_ctrl_c_ends_the_session_and_its_run_within_ten_seconds(tree: Path, behave: Callable[..., None]):
    behave(seed_100="deaf at 2")
    process = start(tree, "-m", "cpu_e2e", "--cell", CELL)
    pids = tree.parent.parent / "results" / CELL / "seed-100" / "child.pid"
    end = time.monotonic() + 30
    while not pids.is_file() or len(pids.read_text().split()) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=15)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert time.monotonic() - begin < 10
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split())


def test_a_baseline_is_made_resumably_and_never_replaced_in_silence(recorded: Path):
    folder = next((recorded / "baselines").iterdir())
    assert len(list(folder.glob("seed-*"))) == 6
    again = baseline(recorded, "--seeds", "0-6")
    assert len(list(folder.glob("seed-*"))) == 6
    assert again.stderr.count("not run again") == 6
    assert again.returncode == 2
    assert "--reason and --approver" in again.stderr


def test_a_place_that_cannot_be_written_is_one_line(tree: Path):
    code, out = pytest_run(tree, "-m", "cpu_e2e", "--cell", CELL, "--results=/proc/nowhere")
    assert code == pytest.ExitCode.TESTS_FAILED, out
    assert f"{CELL}: /proc/nowhere: No such file or directory: name another place with --results or --leases" in out
    assert "Traceback" not in out
    done = baseline(tree, "--seeds", "0", "--leases", "/proc/nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_baseline_takes_no_candidate_s_seed(tree: Path):
    done = baseline(tree, "--seeds", "95-100")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a baseline takes seeds 0 to 99" in done.stderr
