"""`vime convert`: Hugging Face → torch_dist → Hugging Face is the identity, and training starts from either alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.families import MODELS
from tests.training.ranks import configured, one_rank, random_batch, twin
from vime.convert import hf_to_torch_dist, torch_dist_to_hf
from vime.errors import RunError, UserError
from vime.training.checkpoint import is_complete

pytestmark = pytest.mark.heavy


def saved(directory: Path, name: str = "qwen3", dtype: str = "float32") -> Path:
    """A Hugging Face directory of random weights."""
    with one_rank(configured(twin(directory / "twin", **MODELS[name]), model={"dtype": dtype})) as actor:
        actor.export_hf(str(directory / "hf"))
    return directory / "hf"


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(directory / "model.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_is_the_identity(tmp_path, name):
    source = saved(tmp_path, name, "bfloat16" if name == "llama" else "float32")
    hf_to_torch_dist(source, tmp_path / "torch_dist")
    torch_dist_to_hf(tmp_path / "torch_dist", source, tmp_path / "back")
    for file in sorted(source.iterdir()):
        assert (tmp_path / "back" / file.name).read_bytes() == file.read_bytes(), file.name


def test_training_starts_alike_from_both(tmp_path):
    source = saved(tmp_path, "qwen3-moe")
    hf_to_torch_dist(source, tmp_path / "torch_dist")
    first = {"random_init_seed": None}
    second = {**first, "load": "torch-dist", "torch_dist_path": str(tmp_path / "torch_dist")}
    metrics = []
    for model in (first, second):
        with one_rank(configured(str(source), model=model, algo={"kl_coef": 0.1}, train={"lr": 1e-2})) as actor:
            metrics.append([actor.train(random_batch(), step) for step in range(2)])
    assert metrics[0] == metrics[1]
    assert abs(metrics[1][0]["train/kl_ref"]) < 1e-9 < metrics[1][1]["train/kl_ref"]  # the reference stays where the run started


def test_a_trained_checkpoint_becomes_a_hugging_face_directory(tmp_path):
    source = saved(tmp_path)
    with one_rank(configured(str(source), model={"random_init_seed": None}, train={"lr": 1e-2})) as actor:
        actor.train(random_batch(), 0)
        actor.save(str(tmp_path / "step-1"), {})
        actor.export_hf(str(tmp_path / "expected"))
    torch_dist_to_hf(tmp_path / "step-1", source, tmp_path / "got")
    expected, got = tensors(tmp_path / "expected"), tensors(tmp_path / "got")
    assert expected.keys() == got.keys() and all(torch.equal(expected[name], got[name]) for name in expected)


def test_another_dtype_is_a_cast(tmp_path):
    source = saved(tmp_path)
    hf_to_torch_dist(source, tmp_path / "torch_dist", "bfloat16")
    torch_dist_to_hf(tmp_path / "torch_dist", source, tmp_path / "back")
    one, other = tensors(source), tensors(tmp_path / "back")
    assert all(torch.equal(one[name].bfloat16(), other[name]) for name in one)


def test_what_cannot_be_converted_is_refused_before_anything_is_written(tmp_path):
    source = saved(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="mine: holds something else than a checkpoint and would be replaced"):
        hf_to_torch_dist(source, tmp_path / "mine")
    with pytest.raises(UserError, match="no such directory"):
        hf_to_torch_dist(tmp_path / "absent", tmp_path / "out")
    with pytest.raises(UserError, match=r"no complete checkpoint there \(vime.json is missing\)"):
        torch_dist_to_hf(source, source, tmp_path / "out")
    hf_to_torch_dist(source, tmp_path / "torch_dist")
    with pytest.raises(UserError, match="mine: holds something else than a model"):
        torch_dist_to_hf(tmp_path / "torch_dist", source, tmp_path / "mine")
    other = twin(tmp_path / "other", **{**MODELS["qwen3"], "intermediate_size": 64})
    with pytest.raises(UserError, match="holds another model"):
        torch_dist_to_hf(tmp_path / "torch_dist", Path(other), tmp_path / "out")
    (source / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="model.safetensors: cannot be read"):
        hf_to_torch_dist(source, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*partial"))


def test_weights_alone_are_no_place_to_resume_from(tmp_path):
    source = saved(tmp_path)
    hf_to_torch_dist(source, tmp_path / "torch_dist")
    with one_rank(configured(str(source), model={"random_init_seed": None})) as actor:
        with pytest.raises(UserError, match="holds weights alone, no optimizer to go on with: start from it with model.load: torch-dist"):
            actor.load(str(tmp_path / "torch_dist"))


FULL = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"


def test_the_command_tells_progress_and_one_line_when_the_disk_is_full(tmp_path):
    source = saved(tmp_path)
    command = ["convert", "hf-to-torch-dist", str(source), str(tmp_path / "torch_dist")]
    done = subprocess.run([sys.executable, "-m", "vime.cli", *command], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and is_complete(tmp_path / "torch_dist")
    assert done.stderr.splitlines()[0].startswith(f"reading {source}: 18/18 tensors") and "Warning" not in done.stderr
    full = f"{FULL} sys.argv = {['vime', *command]}; from vime.cli import main; main()"
    failed = subprocess.run([sys.executable, "-c", full], capture_output=True, text=True, timeout=100)
    assert failed.returncode == RunError("checkpoint", "").exit_code
    assert failed.stderr.splitlines()[-1].startswith("vime: error: checkpoint: ") and "File too large" in failed.stderr and "Traceback" not in failed.stderr
    assert is_complete(tmp_path / "torch_dist")
