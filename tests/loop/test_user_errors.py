"""What the user can mend is told in one message before anything is written or started: bad models, bad data, bad directories."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import psutil
import pytest

from tests.loop.command import Command, command, overrides
from tests.loop.process import EXAMPLE, MODEL, settings

__all__ = ["command"]


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = children()
    yield
    assert children() - before == set()


def children() -> set[int]:
    """Of this process, without Python's own helper."""
    return {process.pid for process in psutil.Process().children(recursive=True) if "resource_tracker" not in str(process.cmdline())}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the twin, to be broken."""
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def refused(command: Command, tmp_path: Path, *arguments: str) -> str:
    """The message of a `vime train` that must end with 2 and leave no run directory."""
    done = command("train", EXAMPLE, *settings(), *arguments, "--out", tmp_path / "run")
    assert done.code == 2
    assert not (tmp_path / "run").exists()
    return done.message


def test_missing_model_directory(command: Command, tmp_path: Path):
    message = refused(command, tmp_path, *overrides(model__path="/no/such/model"))
    assert message.startswith("model.path: no config.json in /no/such/model; give a Hugging Face model directory")


def test_model_directory_without_weights(command: Command, tmp_path: Path, model: Path):
    (model / "model.safetensors").unlink()
    message = refused(command, tmp_path, *overrides(model__path=model))
    assert message.startswith(f"model.path: no *.safetensors in {model}")
    assert "model.random_init_seed" in message


@pytest.mark.parametrize(("text", "words"), [("{", "config.json"), ('{"model_type": "qwen9"}', "qwen9"), ("[]", "config.json")])
def test_model_config_that_is_none_of_ours(command: Command, tmp_path: Path, model: Path, text: str, words: str):
    (model / "config.json").write_text(text)
    message = refused(command, tmp_path, *overrides(model__path=model))
    assert words in message
    assert str(model) in message


def test_tokenizer_with_more_ids_than_the_model(command: Command, tmp_path: Path, model: Path):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    message = refused(command, tmp_path, *overrides(model__path=model))
    assert "has ids up to" in message
    assert "but the model's vocab_size is 20; use the tokenizer the model was trained with" in message


def test_tokenizer_that_cannot_spell_the_task(command: Command, tmp_path: Path):
    message = refused(command, tmp_path, *overrides(data__task="rg:leg_counting", rollout__max_prompt_tokens=500, rollout__max_response_tokens=4))
    assert "the tokenizer cannot encode" in message
    assert "it has no token for" in message


def test_unreadable_prompt_line(command: Command, tmp_path: Path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "cat=", "label": "tac"}\n{"prompt": "dog=" "label"\n')
    message = refused(command, tmp_path, *overrides(data__task="null", data__path=file))
    assert message.startswith(f"{file}:2: not JSON (")


def test_missing_prompt_file(command: Command, tmp_path: Path):
    message = refused(command, tmp_path, *overrides(data__task="null", data__path=tmp_path / "none.jsonl"))
    assert message.startswith(f"data.path: no file at {tmp_path / 'none.jsonl'}")


def test_unknown_task_and_unknown_reward(command: Command, tmp_path: Path):
    assert "did you mean" in refused(command, tmp_path, *overrides(data__task="spell_backwards"))
    assert "reward.name" in refused(command, tmp_path, *overrides(reward__name="tests.nowhere:reward"))
    assert "reward.name" in refused(command, tmp_path, *overrides(reward__name="exact_mach"))


def test_unknown_platform(command: Command, tmp_path: Path):
    assert "tpu" in refused(command, tmp_path, *overrides(platform="tpu"))


def test_more_ranks_than_devices(command: Command, tmp_path: Path):
    message = refused(command, tmp_path, *overrides(placement__devices_per_node=2, rollout__engines=2))
    assert message.startswith("placement: 3 devices are needed (1 trainer ranks, 2 engine devices, non-colocate), but 1 node(s) with 2 cpu")


def test_a_transport_that_the_placement_forbids(command: Command, tmp_path: Path):
    assert "ipc hands memory over on one device" in refused(command, tmp_path, *overrides(weights__transport="ipc"))


def test_out_that_cannot_be_written(command: Command, tmp_path: Path):
    (tmp_path / "file").write_text("")
    for place in (Path("/proc/run"), tmp_path / "file", tmp_path / "file" / "run"):
        done = command("train", EXAMPLE, *settings(), "--out", place)
        assert done.code == 2
        assert done.message.startswith(f"run directory {place}: cannot be written: ")


@pytest.mark.parametrize("way", ["train", "sft"])
def test_out_that_holds_a_run(command: Command, tmp_path: Path, way: str):
    (tmp_path / "manifest.json").write_text("{}")
    done = command(way, EXAMPLE, *settings(), "--out", tmp_path)
    assert done.code == 2
    assert done.message == f"{tmp_path} already holds a run: continue it with --resume {tmp_path}, or choose another --out"
    assert (tmp_path / "manifest.json").read_text() == "{}"


def test_resume_of_what_is_no_run(command: Command, tmp_path: Path):
    message = command("train", "--resume", tmp_path).message
    assert message == f"--resume {tmp_path}: holds no run (no manifest.json): name the directory that a run was written to"
    assert "no such directory" in command("train", "--resume", tmp_path / "none").message
    for manifest in ("{", "[]", "{}"):
        (tmp_path / "manifest.json").write_text(manifest)
        done = command("train", "--resume", tmp_path)
        assert done.code == 2
        assert done.message.startswith(f"{tmp_path}/manifest.json: not the manifest of a run")


def test_resume_and_out_exclude_each_other(command: Command, tmp_path: Path):
    assert command("train", "--resume", tmp_path, "--out", tmp_path).code == 2


def test_sft_names_what_is_wrong_too(command: Command, tmp_path: Path):
    done = command("sft", EXAMPLE, *overrides(model__path="/no/such/model"), "--out", tmp_path / "run")
    assert (done.code, (tmp_path / "run").exists()) == (2, False)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    done = command("sft", EXAMPLE, *overrides(sft__output=tmp_path / "taken"), "--out", tmp_path / "run")
    assert done.code == 2
    assert done.message.startswith(f"sft.output: {tmp_path / 'taken'} ")
    assert (tmp_path / "taken" / "notes.txt").read_text() == "mine"
