"""The commands: exit codes, one-line errors, and what they may import."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from reports.cli import app, main
from tests.reports.synthetic import jsonl, rewards, run_dir

RULE = ["--planned-steps", "100", "--first", "5", "--last", "25", "--delta-first", "0.1", "--delta-last", "0.03", "--delta-whole", "0.025", "--sided", "two"]

RULE_FILE = """sided: two
planned_steps: 100
windows: {first: 5, last: 25}
delta: {first: 0.1, last: 0.03, whole: 0.025}
delta_reason: test
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    return {seed: str(jsonl(root / f"{seed}.jsonl", rewards(seed))) for seed in (0, 1, 2, 3, 4, 100)} | {
        "low": str(jsonl(root / "low.jsonl", rewards(101, plateau=0.7))),
        "short": str(jsonl(root / "short.jsonl", rewards(102)[:60])),
        "near": str(jsonl(root / "near.jsonl", rewards(103, plateau=0.906))),
        "nothing": str(jsonl(root / "nothing.jsonl", [])),
    }


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def against(files):
    return [part for seed in range(5) for part in ("-b", files[seed])]


@pytest.mark.parametrize(
    ("candidate", "code", "word"),
    [(100, 0, "PASS"), ("low", 1, "FAIL"), ("near", 10, "INCONCLUSIVE"), ("short", 11, "INCOMPLETE"), (0, 12, "INVALID"), ("nothing", 12, "INVALID")],
)
def test_exit_codes_of_judge(files, candidate, code, word):
    done = run("judge", files[candidate], *against(files), *RULE)
    assert done.exit_code == code, done.output
    assert word in done.output


def test_no_baseline(files):
    assert run("judge", files[100], *RULE).exit_code == 15


def test_json_and_out_hold_the_same_verdict(files, tmp_path):
    done = run("judge", files[100], *against(files), *RULE, "--json", "--out", tmp_path / "v.json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "v.json").read_text())


def test_rule_from_a_file(files, tmp_path):
    recipe = tmp_path / "rule.yaml"
    recipe.write_text(RULE_FILE + "exactness: {weight_digests: false}\n")
    assert run("judge", files[100], *against(files), "--recipe", recipe).exit_code == 0
    assert run("judge", files[100], *against(files), "--recipe", recipe, "--delta-last", "0.001").exit_code in (1, 10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["judge", "{100}"], "--delta (or --delta-first, --delta-last, --delta-whole), --planned-steps"),
        (["judge", "/nothing/here", *RULE], "no such file"),
        (["judge", "{100}", "-b", "/nothing/here", *RULE], "no such run"),
        (["judge", "{100}", "--recipe", "no-such-recipe"], "no recipe 'no-such-recipe'"),
        (["judge", "{100}", "--recipe", "/nothing.yaml"], "no such file"),
        (["judge", "{100}", *RULE, "--format", "xlsx"], "unknown"),
        (["judge", "{100}", *RULE, "--last", "99"], "disjoint windows"),
        (["judge", "{100}", *RULE, "--delta-residual", "0.5"], "residual"),
        (["judge", "{100}", *RULE[:-1], "three"], "sided"),
        (["site", "/nothing/here"], "no such results"),
        (["compare", "{100}"], "two or more"),
        (["baseline", "show", "/nothing"], "holds no baseline.json"),
        (["baseline", "record", "{0}", "--recipe", "spell-backward"], "not recorded"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(files, arguments, words, monkeypatch, capsys):
    filled = [argument.format(*(files[seed] for seed in range(5)), *[""] * 95, files[100]) if argument.startswith("{") else argument for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["reports", *filled])
    with pytest.raises(SystemExit) as left:
        main()
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.startswith("error: ")
    assert words in error
    assert "Traceback" not in error


def test_page_table_compare_and_baseline_commands(tmp_path):
    for seed in range(4):
        run_dir(tmp_path / "base" / f"seed-{seed}", seed)
    recipe = tmp_path / "rule.yaml"
    recipe.write_text(RULE_FILE)
    runs = sorted((tmp_path / "base").iterdir())
    done = run("baseline", "record", *runs, "-o", tmp_path / "baselines", "--recipe", recipe)
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "baselines").iterdir()
    shown = run("baseline", "show", folder)
    assert "4: seeds 0, 1, 2, 3" in shown.output
    candidate = run_dir(tmp_path / "root" / "x.cpu.colocate" / "seed-100", 100)
    judged = run("judge", candidate, "-b", folder, "--recipe", recipe, "--out", tmp_path / "root" / "x.cpu.colocate" / "verdicts")
    assert judged.exit_code == 0, judged.output
    listed = run("table", tmp_path / "root")
    assert "x.cpu.colocate" in listed.output
    assert "NOT_RUN" in listed.output
    page = run("site", tmp_path / "root", "-o", tmp_path / "report")
    assert page.output.strip().endswith("index.html")
    assert run("compare", *runs[:2], "-o", tmp_path / "cmp").exit_code == 0


def test_help_is_quick_and_nothing_heavy_is_imported():
    done = subprocess.run([sys.executable, "-m", "reports", "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "judge" in done.stdout


BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('torch', 'ray', 'vllm', 'megatron', 'transformers', 'vime'):
            raise ImportError(f'{name} is blocked: the harness works without it')
sys.meta_path.insert(0, Blocked())
from reports.cli import main
main()
"""


def test_works_with_the_training_stack_blocked(files):
    done = subprocess.run([sys.executable, "-c", BLOCK, "judge", files[100], *against(files), *RULE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout
