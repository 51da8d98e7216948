from __future__ import annotations

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from matrix.cli import main
from tests.matrix.tree import CELL, MODEL, RECIPE, edit, record

BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'torch', 'ray', 'vllm', 'megatron', 'vime', 'transformers', 'safetensors', 'e2e', 'reports', 'ci'}:
            raise ImportError(f'{name} is blocked')
sys.meta_path.insert(0, Block())
"""


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def matrix(*arguments: str, root: Path | None = None) -> Done:
    """`python -m matrix` in this process: what it prints, and its exit code."""
    extra = ["--root", str(root)] if root else []
    out, err, code = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["matrix", *arguments, *extra])
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(code, out.getvalue(), err.getvalue())


def test_no_command_imports_vime_or_anything_heavy(tree: Path, tmp_path: Path):
    """In a process of its own, in which they cannot be imported."""
    record(tree)
    (tmp_path / "results").mkdir()
    wanted = [
        ["list"],
        ["show", CELL],
        ["show", CELL, "--science"],
        ["show", CELL, "--diff", CELL],
        ["check"],
        ["status", str(tmp_path / "results")],
        ["plan", "--tier", "nightly"],
    ]
    lines = [
        f"sys.argv[1:] = {[*arguments, '--root', str(tree)]!r}\ntry:\n    main()\nexcept SystemExit as end:\n    print('exit', end.code)"
        for arguments in wanted
    ]
    script = "\n".join([BLOCKER, "from matrix.cli import main", *lines])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if line.startswith("exit ")] == ["exit 0"] * len(wanted)


def test_list_prints_the_cells(tree: Path):
    done = matrix("list", "--tier", "smoke", root=tree)
    assert [line.split() for line in done.stdout.splitlines()] == [
        [cell, "spell-backward", "smoke,nightly", "required"] for cell in (CELL, "qwen3-4b.cpu.non-colocate")
    ]
    assert done.returncode == 0


def test_list_of_nothing_is_an_error(tree: Path):
    done = matrix("list", "--tier", "weekly", root=tree)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no cell matches" in done.stderr


def test_show_is_a_configuration_file_with_its_commands(tree: Path, tmp_path: Path):
    done = matrix("show", CELL, "--seed", "104", root=tree)
    assert done.returncode == 0, done.stderr
    assert f"vime train {CELL}.yaml --out results/{CELL}/seed-104" in done.stdout
    file = tmp_path / "run.yaml"
    file.write_text(done.stdout)
    from vime.config.resolve import resolve

    resolved = resolve(file)
    assert (resolved.config.seed, resolved.config.train.lr, resolved.config.algo.dual_clip) == (104, 5e-4, None)


def test_show_as_json(tree: Path):
    told = json.loads(matrix("show", CELL, "--json", root=tree).stdout)
    assert told["config"]["labels"]["science_hash"] == told["science_hash"]
    assert told["key"] == CELL


def test_show_says_what_the_science_hash_is_taken_of(tree: Path):
    told = json.loads(matrix("show", CELL, "--science", root=tree).stdout)
    assert told["config"]["train.lr"] == 5e-4
    assert "weights.transport" not in told["config"]


def test_check_of_a_good_tree(tree: Path):
    record(tree)
    done = matrix("check", root=tree)
    assert (done.returncode, done.stdout.strip()) == (0, "2 cells, 1 models, 1 hardware, 1 recipes: no fault")


def test_check_lists_every_fault_and_exits_1(tree: Path):
    edit(tree, RECIPE, "    advantage: grpo", "    advantage: gpro")
    edit(tree, MODEL, "      twin: 1.333", "      twin: 1.5")
    done = matrix("check", root=tree)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 3
    assert "2 fault(s)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("show", "qwen3-4b.cpu.colocat"), ("list", "--tier", "smoek"), ("list", "--hardware", "cpuu")])
def test_a_wrong_name_is_exit_2_with_the_nearest(tree: Path, arguments: tuple[str, ...]):
    done = matrix(*arguments, root=tree)
    assert done.returncode == 2
    assert "nearest: " in done.stderr
    assert "Traceback" not in done.stderr
