"""Hugging Face's own models as the reference: random weights in which every tensor matters, written as a checkpoint, and their logits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from vime.models.registry import family_for
from vime.models.twins import make_twin

ZERO_CENTRED = ("Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm")  # norms that multiply by 1 + weight


@torch.no_grad()
def write(hf_config: dict[str, Any], directory: Path, seed: int = 0, *, mtp: bool = False) -> Path:
    """A model directory: twin config and tokenizer, and Hugging Face's weights from `randomise`. `mtp`: with its MTP layers, which transformers leaves out."""
    from transformers import AutoConfig

    make_twin(hf_config, directory)
    torch.manual_seed(seed)
    model = auto_class(hf_config).from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
    randomise(model, seed)
    kept = (directory / "config.json").read_bytes()
    model.save_pretrained(directory)
    (directory / "config.json").write_bytes(kept)
    if hf_config["model_type"] == "qwen3_vl_moe":
        _as_published(directory / "model.safetensors")
    if mtp:
        _add_mtp(hf_config, directory / "model.safetensors", seed)
    return directory


def _add_mtp(hf_config: dict[str, Any], file: Path, seed: int) -> None:
    """The MTP layers' tensors, and embedding and head once more under their names, as published checkpoints have them."""
    table, tensors = family_for(hf_config).weight_table(hf_config, mtp=True), load_file(file)
    draft = torch.nn.ParameterDict()
    names = {f"{index}_{name.rsplit('.', 1)[-1]}": name for index, name in enumerate(sorted(table.draft - set(table.aliases)))}
    for key, name in names.items():
        draft[key] = torch.nn.Parameter(torch.empty(table.shapes[name]))
    randomise(draft, seed + 1)
    tensors |= {name: draft[key].detach() for key, name in names.items()}
    tensors |= {alias: tensors[name].clone() for alias, name in table.aliases.items()}
    save_file(tensors, file, metadata={"format": "pt"})


def auto_class(hf_config: Mapping[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if "vision_config" in hf_config else AutoModelForCausalLM


def _as_published(file: Path) -> None:
    """Experts as [experts, in, out]: transformers turns them around when it loads such a checkpoint, and leaves a model that it made itself as it was."""
    tensors = load_file(file)
    turned = {name: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor for name, tensor in tensors.items()}
    save_file(turned, file, metadata={"format": "pt"})


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Matrices wide enough that logits are far from uniform, norms around 1, biases and routing corrections around 0 and none of them 0."""
    around_zero = {f"{name}.weight" for name, module in model.named_modules() if type(module).__name__ in ZERO_CENTRED}
    generator = torch.Generator().manual_seed(seed)
    buffers = {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}
    for name, tensor in {**dict(model.named_parameters()), **buffers}.items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("bias") or name in around_zero:
            tensor.copy_(0.1 * noise)
        elif tensor.dim() == 1:
            tensor.copy_(1 + 0.2 * noise)
        else:
            tensor.copy_(noise * tensor.shape[-1] ** -0.5 * 1.5)


@torch.no_grad()
def logits(directory: Path, sequences: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """float32[len, V] of each sequence."""
    model = auto_class(json.loads((directory / "config.json").read_text())).from_pretrained(directory, dtype=torch.float32).eval()
    trained_epsilons(model)
    return [model(torch.tensor([list(sequence)])).logits[0] for sequence in sequences]


def trained_epsilons(model: Any, config: Any = None) -> None:
    """Hugging Face's classes keep 1e-6 in the norms of a latent whatever rms_norm_eps says; vLLM, Megatron and the models' authors take rms_norm_eps."""
    for name, module in model.named_modules():
        if name.endswith("_a_layernorm"):
            module.variance_epsilon = (config or model.config).rms_norm_eps
