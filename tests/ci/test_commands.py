"""`python -m ci` as a person types it: the local run's exit code and last words; mistakes are one message."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci.conftest import tell

ROOT = Path(__file__).parents[2]
NON = "qwen3-4b.cpu.non-colocate"


def ci(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    told = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-m", "ci", *words], cwd=ROOT, env=told, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.heavy
@pytest.mark.parametrize(("looks", "code", "words"), [("PASS", 0, "build passed (gate: 1 PASS)"), ("INVALID", 12, "build hard_failed (gate: qwen3")])
def test_a_local_run_of_one_cell_ends_with_the_gates_code_and_words(tmp_path, fakes, settings_file, looks, code, words):
    tell(fakes, **{NON: {"looks": [looks]}})
    folder = tmp_path / "out"
    done = ci("run", "--tier", "smoke", "--cell", NON, "--no-checks", "--settings", str(settings_file), "--folder", str(folder))
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(words)
    assert "lint" not in done.stdout
    (build,) = folder.iterdir()
    assert (build / "annotations" / "gate.md").is_file()
    results = ROOT / "results" / build.name
    assert (results / NON / "verdicts").is_dir()
    shutil.rmtree(results)
    shutil.rmtree(ROOT / "report" / build.name, ignore_errors=True)
    assert not [name for name in ("selection.json", "gate") if (ROOT / name).exists()], "a run leaves nothing in the checkout but results and report"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["pipeline"], 2, "name a tier with --tier, or cells with --cell"),
        (["pipeline", "--tier", "nigthly"], 2, "no tier 'nigthly' is declared; nearest: nightly"),
        (["pipeline", "--cell", "x.cpu.y"], 2, "no cell 'x.cpu.y' is declared"),
        (["pipeline", "--tier", "pr", "--changed-since", "no-such-revision"], 2, "is the revision fetched"),
        (["pipeline", "--tier", "smoke", "--image", "x=latest"], 2, "a tag may be another image tomorrow"),
        (["pipeline", "--tier", "smoke", "--settings", "/nowhere.yaml"], 1, "no such file"),
        (["gate", "/nowhere", "--tier", "pr"], 2, "/nowhere: no such results directory"),
        (["gate", "results", "--policy", "pyproject.toml"], 1, "pyproject.toml"),
        (["gate", "results", "--selection", "pyproject.toml"], 2, "no selection"),
        (["run", "--tier", "nothing"], 2, "no tier 'nothing'"),
        (["judge", NON, "--look", "1", "--selection", "nowhere.json"], 2, "nowhere.json: no such file"),
        (["slash", "--comment", "/vime rm -rf"], 2, "/vime run CELL"),
        (["images"], 2, "no registry"),
        (["fetch", "results/none"], 3, "buildkite-agent is not on PATH"),
    ],
)
def test_mistakes_are_one_message(words, code, message):
    done = ci(*words)
    assert (done.returncode, message in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
