"""Third parties' platforms that are broken: one clear line for whoever asks for them, and nobody else is kept from running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKS = "from vime.platforms.cpu import CpuPlatform\nclass Own(CpuPlatform):\n    name = 'own'\n    available = lambda self: False\n"
BROKEN = {
    "import": ("import vendor_that_is_absent\n", "own:Own", "ModuleNotFoundError: No module named 'vendor_that_is_absent'"),
    "syntax": ("class Own(:\n", "own:Own", "SyntaxError"),
    "library": ("raise OSError('libvendor.so: cannot open shared object file')\n", "own:Own", "OSError: libvendor.so"),
    "class": ("", "own:Own", "AttributeError"),
    "making": ("class Own:\n    def __init__(self):\n        raise RuntimeError('no licence')\n", "own:Own", "RuntimeError: no licence"),
    "name": (WORKS.replace("'own'", "'other'"), "own:Own", "it calls itself 'other'"),
    "target": (WORKS, "own", "cannot be loaded"),
}


def install(folder: Path, module: str, target: str, name: str = "own") -> dict[str, str]:
    """The environment of a process that has a package with this entry point."""
    info = folder / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[vime.platforms]\n{name} = {target}\n")
    (folder / "own.py").write_text(module)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "COLUMNS": "400"}


def python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=False)


ASK = """
from vime.errors import UserError
from vime.platforms import registry
print(registry.get("cpu").name, registry.get("auto").name, registry.for_device("cpu").name)
try:
    registry.get("own")
except UserError as error:
    print(str(error))
"""


@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_a_broken_platform_is_one_line_and_the_others_run(kind: str, tmp_path: Path) -> None:
    module, target, says = BROKEN[kind]
    done = python(ASK, install(tmp_path, module, target))
    assert done.returncode == 0, done.stderr
    others, own = done.stdout.splitlines()
    assert others == "cpu cpu cpu"
    assert own.startswith(f"platform own: the entry point `own = {target}` of vime.platforms cannot be loaded")
    assert says in own
    assert done.stderr.splitlines() == [f"platform: auto passes over {own}"]


def test_an_entry_point_does_not_replace_a_shipped_platform(tmp_path: Path) -> None:
    code = "from vime.platforms import registry; print(type(registry.get('cpu')).__module__)"
    assert python(code, install(tmp_path, WORKS, "own:Own", name="cpu")).stdout == "vime.platforms.cpu\n"


@pytest.mark.parametrize(("module", "status"), [(WORKS, "ok"), (BROKEN["import"][0], "note")])
def test_the_doctor_lists_third_parties_and_goes_on(module: str, status: str, tmp_path: Path) -> None:
    environment = install(tmp_path, module, "own:Own")
    command = [str(Path(sys.executable).parent / "vime"), "doctor", "--platform", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["platform own"]["status"] == status


def test_a_platform_that_fails_to_say_whether_it_is_here_is_passed_over(tmp_path: Path) -> None:
    module = WORKS.replace("lambda self: False", "lambda self: 1 / 0")
    done = python("from vime.platforms import registry; print(registry.detect())", install(tmp_path, module, "own:Own"))
    assert done.stdout == "cpu\n"
    assert done.stderr == "platform: auto passes over own: available() fails (ZeroDivisionError: division by zero)\n"
