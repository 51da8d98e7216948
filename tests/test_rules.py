"""The two rules of docs/architecture.md: imports point one way, and framework and harness meet only in files."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {"vime": set(), "matrix": set(), "reports": {"matrix"}, "e2e": {"matrix", "reports"}, "ci": {"matrix", "reports"}}
LIGHT = ("matrix", "reports", "ci")
HEAVY = {"torch", "ray", "vllm", "vllm_ascend", "megatron", "transformers", "torch_npu"}
INSIDE_VIME = {
    "e2e/faults.py"
}  # planted faults: `python -m e2e.faults NAME train …` is a vime process that breaks itself on purpose; it reads no run and judges nothing
FOREIGN_WORDS = re.compile(r"\b(matrix/|baselines?\b|reports/|e2e/|results/)")


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file, at any depth, those by name (`importlib.import_module("x")`, `__import__`) included."""
    parts = module.split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*parts[: len(parts) - node.level], ""]) if node.level else ""
            yield from ((node.lineno, f"{base}{node.module or ''}.{alias.name}".strip(".")) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("import_module", "__import__"):
            yield from ((node.lineno, str(argument.value)) for argument in node.args[:1] if isinstance(argument, ast.Constant))


def breaches(text: str, package: str, module: str) -> list[tuple[int, str]]:
    """Imports of a file in `package` that rule 1 forbids."""
    forbidden = (ALLOWED.keys() - {package} - ALLOWED[package]) | (HEAVY if package in LIGHT else set()) | {"tests", "benchmarks"}
    return [(line, name) for line, name in imports(ast.parse(text), module) if name.split(".")[0] in forbidden]


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_point_one_way(package: str) -> None:
    files = sources(package)
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in files
        if str(path.relative_to(ROOT)) not in INSIDE_VIME
        for line, name in breaches(path.read_text(encoding="utf-8"), package, ".".join(path.relative_to(ROOT).with_suffix("").parts))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("package", "text"),
    [
        ("vime", "import matrix.outcome"),
        ("matrix", "def f():\n    from vime import errors"),
        ("reports", "if TYPE_CHECKING:\n    import torch.nn"),
        ("ci", "from e2e import plugin"),
        ("e2e", "import importlib\nimportlib.import_module('vime.cli')"),
        ("matrix", "from ..reports import judge"),
        ("vime", "from tests import leftovers"),
    ],
)
def test_a_breach_is_seen(package: str, text: str) -> None:
    assert breaches(text, package, f"{package}.some.module"[: len(package) + 5])


def test_what_is_allowed_passes() -> None:
    assert breaches("import matrix, reports.judge\nfrom . import plugin\nimport torch", "e2e", "e2e.runner") == []


def test_vime_speaks_of_nothing_of_the_harness() -> None:
    """Rule 2: no path of the harness and no baseline in vime's code; its docstrings and comments may explain."""
    found = [f"{path.relative_to(ROOT)}:{line}: {text[:80]}" for path in sources("vime") for line, text in harness_words(path.read_text(encoding="utf-8"))]
    assert found == []


def harness_words(text: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(text)
    explained = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explained and FOREIGN_WORDS.search(node.value):
            yield node.lineno, node.value
        names = [getattr(node, key, None) for key in ("id", "attr", "arg", "name")]
        if any(isinstance(name, str) and "baseline" in name.lower() for name in names):
            yield getattr(node, "lineno", 0), str(names)


def test_a_word_of_the_harness_is_seen() -> None:
    code = '"""May speak of baselines."""\ndef f(x):\n    "and of matrix/"\n'
    assert list(harness_words(code)) == []
    for line in ("open('matrix/recipes/x.yaml')", "baseline = 3", "x.baseline_mean", "def load_baseline(): pass"):
        assert list(harness_words(code + line))


def test_only_the_platforms_name_a_vendor() -> None:
    """Nothing outside vime/platforms names torch.cuda or torch_npu."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in sources("vime")
        if "platforms" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.cuda", "torch.npu")) or (isinstance(node, ast.Name) and node.id == "torch_npu")
    ]
    assert found == []


BLOCKED = """
import importlib, pkgutil, sys, time

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy!r}:
            raise ImportError(f"blocked: {{name}}")

sys.meta_path.insert(0, Blocked())
"""
IMPORT_ALL = """
package = importlib.import_module({package!r})
names = [package.__name__, *(module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".") if not module.name.endswith("__main__"))]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def run_blocked(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`code` in a process where none of the heavy packages can be imported."""
    head = BLOCKED.format(heavy=HEAVY)
    return subprocess.run([sys.executable, "-c", head + textwrap.dedent(code), *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT)


def test_the_block_blocks() -> None:
    done = run_blocked("import torch")
    assert done.returncode == 1
    assert "blocked: torch" in done.stderr


@pytest.mark.parametrize("package", LIGHT)
def test_the_harness_imports_without_the_heavy_packages(package: str) -> None:
    done = run_blocked(IMPORT_ALL.format(package=package))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= len([path for path in sources(package) if path.name != "__main__.py"])


@pytest.mark.parametrize("package", [package for package in LIGHT if (ROOT / package / "__main__.py").exists()])
def test_its_commands_explain_themselves_without_the_heavy_packages(package: str) -> None:
    code = f"import runpy; sys.argv = ['{package}', '--help']; runpy.run_module({package!r}, run_name='__main__', alter_sys=True)"
    done = run_blocked(code)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("package", "late"), [("matrix", {"pandas", "scipy", "matplotlib"}), ("ci", {"pandas", "scipy", "matplotlib"}), ("reports", {"scipy", "matplotlib"})]
)
def test_a_start_reads_only_what_it_needs(package: str, late: set[str]) -> None:
    """A start takes 1 s (matrix, ci) or 2 s (reports) at most; that depends on the machine, what costs it does not: these are imported when used."""
    done = run_blocked(f"importlib.import_module({package!r}); print(sorted({late!r} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_command_line_of_vime_starts_light() -> None:
    done = run_blocked("from vime import cli, doctor; from vime.config import options, resolve, tree; print('light')")
    assert done.stdout.strip() == "light", done.stderr


def test_every_module_of_vime_can_be_found() -> None:
    """No folder without __init__.py: it would be missing from the wheel."""
    without = [str(folder.relative_to(ROOT)) for folder in {path.parent for path in sources("vime")} if not (folder / "__init__.py").exists()]
    assert without == []
    assert importlib.util.find_spec("vime.cli") is not None
