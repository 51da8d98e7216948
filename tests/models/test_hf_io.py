"""Loading from and exporting to Hugging Face directories: errors name file, tensor and both shapes; writing is all or nothing."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vime.errors import RunError, UserError
from vime.models.hf_io import Checkpoint, check_tensors, export_hf, read_config
from vime.models.qwen3 import Qwen3

HF = {
    "model_type": "qwen3",
    "hidden_size": 4,
    "intermediate_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "vocab_size": 5,
}


def tensors(hf=HF) -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape) for name, shape in Qwen3().weight_table(hf).shapes.items()}


def directory(path: Path, held: dict[str, torch.Tensor], hf=HF) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file(held, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(hf))
    (path / "tokenizer.json").write_text("{}")
    return path


def test_missing_directory_and_config(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        read_config(tmp_path / "absent")
    with pytest.raises(UserError, match=r"config.json: no such file"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json: not JSON"):
        read_config(tmp_path)
    with pytest.raises(UserError, match="neither model.safetensors nor"):
        Checkpoint(tmp_path)


def test_a_missing_tensor_is_named_with_its_file(tmp_path):
    held = tensors()
    del held["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(UserError, match=r"model.safetensors: tensor model.layers.0.mlp.up_proj.weight \[6, 4\] is missing"):
        check_tensors(Checkpoint(directory(tmp_path, held)), Qwen3().weight_table(HF))


def test_an_absent_head_hints_at_the_tied_flag(tmp_path):
    held = tensors({**HF, "tie_word_embeddings": True})
    with pytest.raises(UserError, match=r"lm_head.weight \[5, 4\] is missing; .*tie_word_embeddings: true"):
        check_tensors(Checkpoint(directory(tmp_path, held)), Qwen3().weight_table(HF))


def test_a_shape_that_differs_shows_both(tmp_path):
    held = {**tensors(), "model.norm.weight": torch.zeros(7)}
    with pytest.raises(UserError, match=r"model.norm.weight has shape \[7\], config.json makes it \[4\]"):
        check_tensors(Checkpoint(directory(tmp_path, held)), Qwen3().weight_table(HF))


def test_extra_tensors_are_refused_and_old_buffers_are_not(tmp_path):
    held = {**tensors(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(1)}
    check_tensors(Checkpoint(directory(tmp_path, held)), Qwen3().weight_table(HF))
    with pytest.raises(UserError, match="1 tensors are not part of the model .*: model.layers.9.x"):
        check_tensors(Checkpoint(directory(tmp_path, {**held, "model.layers.9.x": torch.zeros(1)})), Qwen3().weight_table(HF))


def test_a_tied_head_written_twice_must_be_the_embedding(tmp_path):
    hf = {**HF, "tie_word_embeddings": True}
    held = tensors(hf)
    table = Qwen3().weight_table(hf)
    same = {**held, "lm_head.weight": held["model.embed_tokens.weight"].clone()}
    check_tensors(Checkpoint(directory(tmp_path, same, hf)), table)
    with pytest.raises(UserError, match="lm_head.weight differs from model.embed_tokens.weight"):
        check_tensors(Checkpoint(directory(tmp_path, {**same, "lm_head.weight": torch.zeros(5, 4)}, hf)), table)


def test_a_truncated_file_is_named(tmp_path):
    directory(tmp_path, tensors())
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match=r"model.safetensors: cannot be read"):
        Checkpoint(tmp_path)


def sizes(held: dict[str, torch.Tensor]) -> dict[str, int]:
    return {name: tensor.numel() * tensor.element_size() for name, tensor in held.items()}


@pytest.mark.parametrize("limit", [10**9, 200])
def test_export_is_one_file_or_sharded_with_an_index_and_reads_back(tmp_path, limit):
    held, source = tensors(), directory(tmp_path / "source", tensors())
    export_hf(iter(held.items()), sizes(held), tmp_path / "out", source, HF, writes=True, max_shard_bytes=limit)
    read = Checkpoint(tmp_path / "out")
    check_tensors(read, Qwen3().weight_table(HF))
    assert all(torch.equal(read.tensor(name)[:], tensor) for name, tensor in held.items())
    assert (len(list((tmp_path / "out").glob("*.safetensors"))) > 1) == (limit == 200)
    assert (tmp_path / "out" / "tokenizer.json").is_file() and not (tmp_path / "out.partial").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


def test_export_over_an_earlier_one_replaces_it_whole(tmp_path):
    source = directory(tmp_path / "source", tensors())
    for round_ in range(2):
        held = {name: torch.full_like(tensor, round_) for name, tensor in tensors().items()}
        export_hf(iter(held.items()), sizes(held), tmp_path / "out", source, HF, writes=True)
    assert set(load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"].tolist()) == {1.0}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_disk_that_refuses_leaves_the_earlier_export(tmp_path):
    source, held = directory(tmp_path / "source", tensors()), tensors()
    export_hf(iter(held.items()), sizes(held), tmp_path / "out", source, HF, writes=True)
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
    try:
        with pytest.raises(RunError, match="export: .*out") as caught:
            export_hf(iter(tensors().items()), sizes(held), tmp_path / "out", source, HF, writes=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.stage == "export"
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before and not (tmp_path / "out.partial").exists()
