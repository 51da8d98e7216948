"""Checkpoints that hold experts in another form than the weight table: read alike, whichever slices a rank wants."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import hugging_face
from tests.models.families import BY_NAME
from tests.models.megatron import config_of
from tests.training.ranks import one_rank
from vime.errors import UserError
from vime.models.hf_io import Checkpoint, check_tensors
from vime.models.registry import family_for


def weights(directory: Path) -> dict[str, torch.Tensor]:
    with one_rank(config_of(directory)) as actor:
        return {name: parameter.detach().clone() for name, parameter in actor.trained.model.named_parameters()}


def rewrite(directory: Path, name: str, out: Path) -> Path:
    """The checkpoint with its experts in the other form."""
    out.mkdir()
    tensors = load_file(directory / "model.safetensors")
    if name == "qwen3-vl-moe":
        changed = {key: value.transpose(1, 2).contiguous() if ".mlp.experts." in key else value for key, value in tensors.items()}
    else:
        changed = {key: value for key, value in tensors.items() if ".mlp.experts." not in key}
        for prefix in {key.split("experts.")[0] + "experts." for key in tensors if ".mlp.experts." in key}:
            each = [{part: tensors[f"{prefix}{index}.{part}_proj.weight"] for part in ("gate", "up", "down")} for index in range(8)]
            changed[f"{prefix}gate_up_proj"] = torch.stack([torch.cat([expert["gate"], expert["up"]]) for expert in each])
            changed[f"{prefix}down_proj"] = torch.stack([expert["down"] for expert in each])
    save_file(changed, out / "model.safetensors", metadata={"format": "pt"})
    for file in directory.glob("*.json"):
        (out / file.name).write_bytes(file.read_bytes())
    return out


@pytest.mark.parametrize("name", ["qwen3-vl-moe", "qwen3-5-moe", "qwen3-5-moe-vl"])
def test_both_forms_give_the_same_model(name, tmp_path):
    directory = hugging_face.write(BY_NAME[name].config, tmp_path / name)
    other = rewrite(directory, name, tmp_path / "other")
    first, second = weights(directory), weights(other)
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_slices_of_a_part_are_those_of_the_tensor(tmp_path):
    directory = hugging_face.write(BY_NAME["qwen3-5-moe"].config, tmp_path / "model")
    other = Checkpoint(rewrite(directory, "qwen3-5-moe", tmp_path / "other"))
    table, plain = family_for(BY_NAME["qwen3-5-moe"].config).weight_table(BY_NAME["qwen3-5-moe"].config), Checkpoint(directory)
    for name in ("model.layers.1.mlp.experts.5.up_proj.weight", "model.layers.3.mlp.experts.7.down_proj.weight", "model.norm.weight"):
        shape = table.shapes[name]
        cut = tuple(slice(size // 3, size - 1) for size in shape)
        assert torch.equal(other.find(name, table)[cut], plain.find(name, table)[cut])


def test_a_tensor_of_another_shape_is_refused_in_either_form(tmp_path):
    directory = hugging_face.write(BY_NAME["qwen3-5-moe"].config, tmp_path / "model")
    other = rewrite(directory, "qwen3-5-moe", tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = tensors["model.layers.0.mlp.experts.gate_up_proj"][:, :-1].contiguous()
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    table = family_for(BY_NAME["qwen3-5-moe"].config).weight_table(BY_NAME["qwen3-5-moe"].config)
    with pytest.raises(UserError, match=r"experts.0.gate_proj.weight has shape \[8, 127, 96\]"):
        check_tensors(Checkpoint(other), table)
