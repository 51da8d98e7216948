"""`make test`: the light tests on two workers, then the heavy ones one by one; each test in exactly one part, one exit code for both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.__main__ import PARTS, Part, commands, verdict

ROOT = Path(__file__).parents[1]
INNER = """
import os
from pathlib import Path
import pytest

def record(name):
    with (Path(__file__).parent / "ran").open("a") as file:
        print(name, os.environ.get("PYTEST_XDIST_WORKER", "alone"), file=file)

@pytest.mark.parametrize("number", range(8))
def test_light(number):
    record(f"light {number}")

@pytest.mark.heavy
@pytest.mark.parametrize("number", range(2))
def test_heavy(number):
    record(f"heavy {number}")
    assert number == 0

@pytest.mark.slow
def test_slow_light():
    record("slow light")

@pytest.mark.heavy
@pytest.mark.slow
def test_slow_heavy():
    record("slow heavy")
"""


def test_each_test_runs_once_the_heavy_ones_alone_and_a_failure_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(INNER)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = heavy\n    slow\n")
    more = ["-c", str(tmp_path / "pytest.ini"), "-p", "no:cacheprovider", str(tmp_path)]
    outside_xdist = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")}
    done = subprocess.run([sys.executable, "-m", "tests", "--slow", *more], capture_output=True, text=True, timeout=170, cwd=ROOT, env=outside_xdist)
    ran = sorted((tmp_path / "ran").read_text().splitlines())
    assert [line.rsplit(" ", 1)[0] for line in ran] == ["heavy 0", "heavy 1", *[f"light {number}" for number in range(8)], "slow heavy", "slow light"]
    assert {line.rsplit(" ", 1)[1] for line in ran if "heavy" in line} == {"alone"}
    assert {line.rsplit(" ", 1)[1] for line in ran if "light" in line} <= {"gw0", "gw1"}
    assert done.returncode == 1
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("light tests: passed (")
    assert "; heavy tests: FAILED (" in last


def test_the_parts_hold_every_test_once() -> None:
    """Whatever marks a test bears: one part's expression is the other's negation."""
    assert PARTS == {"light": "not heavy", "heavy": "heavy"}
    for given, narrowed in ([], "(not slow)"), (["--slow"], ""), (["-m", "not weights"], "(not weights) and (not slow)"), (["-mdata", "--slow"], "(data)"):
        expected = [f"({part})" + (f" and {narrowed}" if narrowed else "") for part in PARTS.values()]
        assert expected == [command[command.index("-m") + 1] for command in commands(given).values()]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((1, 0), 1), ((0, 1), 1), ((5, 1), 1), ((3, 1), 3), ((2,), 2), ((0, 137), 137)],
)
def test_one_exit_code_for_both_parts(codes: tuple[int, ...], expected: int) -> None:
    assert expected == verdict([Part("part", code, 1.0) for code in codes])


def test_make_test_runs_both_parts() -> None:
    dry = subprocess.run(["make", "-n", "-o", ".venv/.installed", "test", "test-all"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert [line.split("python", 1)[1].strip() for line in dry.splitlines() if "-m tests" in line] == ["-m tests", "-m tests --slow"]
