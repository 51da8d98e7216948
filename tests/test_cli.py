"""The commands that run nothing: `vime config`, `vime train --dry-run`, `vime doctor`; and how every command reports a wrong configuration."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loop.command import Command, command, overrides
from vime.config.resolve import from_dict, resolve

__all__ = ["command"]

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "grpo-spell-backward.yaml"


def rows(text: str) -> dict[str, tuple[str, str]]:
    """key → (value, origin) of what `vime config show` prints."""
    cells = [re.split(r"\s{2,}", line) for line in text.splitlines()[1:] if not line.startswith("hash ")]
    return {key: (value, origin) for key, value, origin in cells}


def test_show_says_where_every_value_comes_from(command: Command):
    done = command("config", "show", EXAMPLE, "--set", "train.lr=2e-4", "--platform", "cpu")
    assert done.code == 0, done.err
    shown = rows(done.out)
    line, text = next((number, text) for number, text in enumerate(EXAMPLE.read_text().splitlines(), 1) if "samples_per_prompt" in text)
    assert shown["rollout.samples_per_prompt"] == (text.split(":")[1].strip(), f"file {EXAMPLE}:{line}")
    assert shown["train.lr"] == ("0.0002", "command line")
    assert shown["platform"] == ('"cpu"', "command line")
    assert shown["algo.clip_high"] == ("0.28", "default")
    assert shown.keys() == resolve(EXAMPLE).provenance.keys()  # every leaf, once
    assert done.out.splitlines()[-1] == f"hash {resolve(EXAMPLE, ['train.lr=2e-4']).hash}"


def test_show_changed_leaves_the_defaults_out(command: Command):
    done = command("config", "show", EXAMPLE, "--changed")
    assert "default" not in {origin for _, origin in rows(done.out).values()}
    assert "train.lr" in rows(done.out)


def test_show_names_the_recipe_file_below(command: Command, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(f"recipe: {EXAMPLE}\ntrain: {{steps: 70}}\n")
    shown = rows(command("config", "show", tmp_path / "mine.yaml").out)
    assert shown["train.steps"][1] == f"file {tmp_path / 'mine.yaml'}:2"
    assert shown["train.lr"][1].startswith(f"recipe {EXAMPLE}:")


def test_schema_is_the_committed_one(command: Command, tmp_path: Path):
    committed = (ROOT / "matrix" / "schema" / "vime-config.schema.json").read_text()
    assert command("config", "schema").out == committed
    command("config", "schema", "-o", tmp_path / "schema.json")
    assert (tmp_path / "schema.json").read_text() == committed


def test_dry_run_prints_a_configuration_that_resolves_to_itself(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = command("train", EXAMPLE, "--dry-run", "--set", "seed=3")
    printed = json.loads(done.out)
    assert printed.pop("hash") == resolve(EXAMPLE, ["seed=3"]).hash
    assert from_dict(printed).config == resolve(EXAMPLE, ["seed=3"]).config
    assert list(tmp_path.iterdir()) == []  # nothing was written


def test_dry_run_needs_neither_torch_nor_ray(tmp_path: Path):
    block = "import sys; sys.modules.update(dict.fromkeys(['torch', 'ray', 'vllm', 'megatron', 'transformers']));"
    code = f"{block} from vime import cli; sys.argv = ['vime', 'train', {str(EXAMPLE)!r}, '--dry-run']; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_dry_run_of_a_resume_runs_nothing(command: Command, tmp_path: Path):
    done = command("train", "--resume", tmp_path, "--dry-run")
    assert done.code == 2
    assert "--dry-run" in done.message


@pytest.mark.parametrize("way", [["train", "--dry-run"], ["train"], ["sft"]])
def test_options_that_the_libraries_lack_are_refused_before_anything_starts(command: Command, tmp_path: Path, way: list[str]):
    out = [] if "--dry-run" in way else ["--out", tmp_path / "run"]
    done = command(*way, EXAMPLE, *out, *overrides(vllm__max_num_seq=4, megatron__model__attention_softmax_in_fp33="true", megatron__optimiser="{}"))
    assert done.code == 2
    first, second, third = sorted(done.message.splitlines(), key=lambda line: line.split(": ")[1])
    assert "megatron.model.attention_softmax_in_fp33 is no option of megatron-core" in first
    assert "did you mean attention_softmax_in_fp32" in first
    assert "megatron.optimiser" in second
    assert "did you mean optimizer" in second
    assert "vllm.max_num_seq is no option of vllm" in third
    assert "did you mean max_num_seqs" in third
    assert not (tmp_path / "run").exists()


WRONG = {
    "rollout.temperature=0": r"rollout.temperature: 0 samples the same answer every time.*use a value above 0",
    "rollout.temperature=-1": r"rollout.temperature: .*greater than or equal to 0, got -1",
    "train.optimizer_steps_per_rollout=7": r"train.optimizer_steps_per_rollout: 7 does not divide the 256 samples of a step: choose one of \[1, 2, 4",
    "train.max_tokens_per_microbatch=10": r"10 cannot hold one sample of max_prompt_tokens \+ max_response_tokens = 15 tokens",
    "train.lr=fast": r"train.lr: .*got 'fast'",
    "train.warmup=1": r"unknown key train.warmup: did you mean train.warmup_steps",
    "train.learning_rate=1": r"unknown key train.learning_rate: known here: steps, .*lr, ",
    "train=3": r"train: ",
    "seed": r"--set seed: expected key.path=value",
    "rollout.engines=[": r"--set rollout.engines=\[: .*YAML",
    "model.path.x=1": r"--set model.path.x.*: ",
}


@pytest.mark.parametrize("override", WRONG)
def test_a_wrong_value_is_named_with_its_mend(command: Command, override: str):
    done = command("train", EXAMPLE, "--set", override, "--dry-run")
    assert done.code == 2
    assert len(done.message.splitlines()) == 1
    assert re.search(WRONG[override], done.message), done.message


def test_a_file_that_is_not_there_or_not_yaml(command: Command, tmp_path: Path):
    assert "no such file" in command("train", tmp_path / "none.yaml").message
    (tmp_path / "bad.yaml").write_text("model:\n  path: x\n path: y\n")
    assert command("train", tmp_path / "bad.yaml").message.startswith(f"{tmp_path / 'bad.yaml'}:3: not valid YAML")
    assert "Is a directory" in command("train", tmp_path).message


def test_doctor_tells_this_machine(command: Command):
    done = command("doctor", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)
    assert command("doctor", "--platform", "cpu").code == 0
    assert command("doctor", "--platform", "tpu").code == 2
