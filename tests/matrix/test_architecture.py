"""Parameter counts from config.json: against published totals, and against the Hugging Face classes themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from matrix.architecture import UnknownArchitecture, read_architecture
from matrix.loader import ROOT, load

MODELS = {name: declared.value for name, declared in load(ROOT).models.items()}


@pytest.mark.parametrize(
    ("name", "billions"), [("qwen3-4b", 4.02), ("qwen3-8b", 8.19), ("qwen3-32b", 32.76), ("qwen3-30b-a3b", 30.53), ("deepseek-v3", 671.03), ("llama-3", 8.03)]
)
def test_totals_are_what_the_models_are_called_after(name: str, billions: float):
    assert round(read_architecture(MODELS[name].architecture).parameters / 1e9, 2) == billions


@pytest.mark.parametrize("name", sorted(name for name, model in MODELS.items() if model.parameters))
def test_published_totals_are_met_exactly(name: str):
    architecture = read_architecture(MODELS[name].architecture)
    copies = len(architecture.mtp) * (architecture.embedding + architecture.head)  # GLM publishes them once more with the MTP layer
    with_mtp = architecture.parameters + architecture.mtp_parameters
    assert MODELS[name].parameters in (architecture.parameters, with_mtp, with_mtp + copies)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"qwen3-omni-30b-a3b"}))
@pytest.mark.slow
def test_counts_equal_the_hugging_face_class_s(name: str):
    assert read_architecture(MODELS[name].architecture).parameters == hugging_face_count(MODELS[name].architecture)


def hugging_face_count(config: Mapping[str, Any]) -> int:
    """Parameters of the class, built on the meta device, and the routers' correction biases, which are buffers there."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    told = CONFIG_MAPPING[config["model_type"]](**{key: value for key, value in config.items() if key != "architectures"})
    text = told.get_text_config()
    text.tie_word_embeddings = getattr(text, "tie_word_embeddings", config.get("tie_word_embeddings", False))
    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(told)
    return sum(tensor.numel() for tensor in model.parameters()) + sum(tensor.numel() for name, tensor in model.named_buffers() if name.endswith("bias"))


def test_an_unknown_model_type_or_a_missing_size_is_refused():
    with pytest.raises(UnknownArchitecture, match="model_type 'mamba9'"):
        read_architecture({"model_type": "mamba9"})
    with pytest.raises(UnknownArchitecture, match="needs 'intermediate_size'"):
        read_architecture({key: value for key, value in MODELS["qwen3-8b"].architecture.items() if key != "intermediate_size"})
