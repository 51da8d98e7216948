"""The multi-token-prediction layer against transformers' own, and its second names for embedding and head."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models import hugging_face
from tests.models.families import BY_NAME
from tests.models.megatron import SEQUENCES, config_of
from tests.training.ranks import one_rank
from vime.config.tree import MtpConfig
from vime.errors import UserError
from vime.models.hf_io import Checkpoint, check_tensors
from vime.models.registry import family_for

FAMILIES = ["glm4-moe", "glm4-moe-lite", "deepseek-v3"]
LAYER = 2  # the twin's first MTP layer


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hugging_face.write(BY_NAME[request.param].config, tmp_path_factory.mktemp("mtp") / request.param, mtp=True)


@torch.no_grad()
def draft_of_hugging_face(directory: Path, sequence: list[int]) -> torch.Tensor:
    """float32[len − 1, V]: what transformers' MtpLayer predicts from the hidden state of t and token t + 1."""
    from transformers import AutoModelForCausalLM
    from transformers.modeling_layers import MtpLayer

    main: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    hugging_face.trained_epsilons(main)
    block = type(main.model.layers[-1])
    layer = MtpLayer(main.config, lambda config, _: block(config, LAYER - 1), type(main.model.norm), LAYER).eval()
    layer.load_state_dict(as_transformers_holds_it(load_file(directory / "model.safetensors")), strict=True)
    hugging_face.trained_epsilons(layer, main.config)
    hidden = main.model(torch.tensor([sequence])).last_hidden_state[:, :-1]
    positions = torch.arange(len(sequence) - 1)[None]
    embedded = main.model.embed_tokens(torch.tensor([sequence[1:]]))
    rotary = main.model.rotary_emb(embedded, position_ids=positions)
    out = layer(embedded, hidden, position_embeddings=rotary, attention_mask=None, position_ids=positions, past_key_values=None)
    return main.lm_head(out)[0]


def as_transformers_holds_it(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The MTP layer's own tensors under the module's names, experts stacked."""
    prefix = f"model.layers.{LAYER}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    own = {name: tensor for name, tensor in own.items() if name not in ("embed_tokens.weight", "shared_head.head.weight")}
    out, experts = {}, {}
    for name, tensor in own.items():
        if match := re.fullmatch(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight", name):
            experts[int(match[1]), match[2]] = tensor
        elif name in ("enorm.weight", "hnorm.weight", "eh_proj.weight"):
            out[name] = tensor
        else:
            out["post_norm.weight" if name == "shared_head.norm.weight" else f"mtp_block.{name}"] = tensor
    count = len(experts) // 3
    out["mtp_block.mlp.experts.gate_up_proj"] = torch.stack([torch.cat((experts[index, "gate"], experts[index, "up"])) for index in range(count)])
    out["mtp_block.mlp.experts.down_proj"] = torch.stack([experts[index, "down"] for index in range(count)])
    return out


def draft_of_vime(directory: Path, sequences: list[list[int]]) -> list[torch.Tensor]:
    """The same of vime's trainer, all sequences in one pack."""
    from vime.training.batch import TrainBatch, pack
    from vime.training.forward import inputs

    batch = TrainBatch.of(sequences, [[0] * len(sequence) for sequence in sequences])
    config = config_of(directory, train={"mtp": MtpConfig(loss_weight=0.1)})
    with one_rank(config) as actor:
        micro = pack(batch, list(range(batch.size)), torch.device("cpu"))
        _, (draft,) = actor.trained.model(**inputs(micro, draft=True))
        return [
            draft[0, start : stop - 1, : actor.trained.shape.vocab_size].detach() for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
        ]


def test_draft_logits_equal_transformers(model):
    sequences = [list(sequence) for sequence in SEQUENCES if len(sequence) > 1]
    for sequence, ours in zip(sequences, draft_of_vime(model, sequences), strict=True):
        torch.testing.assert_close(ours, draft_of_hugging_face(model, sequence), atol=BY_NAME["glm4-moe"].tolerance, rtol=0)


def test_a_second_embedding_that_differs_is_refused_and_one_left_out_is_not(tmp_path):
    config = BY_NAME["glm4-moe-lite"].config
    directory = hugging_face.write(config, tmp_path / "model", mtp=True)
    table, file = family_for(config).weight_table(config, mtp=True), directory / "model.safetensors"
    tensors, alias = load_file(file), f"model.layers.{LAYER}.embed_tokens.weight"
    assert torch.equal(tensors[alias], tensors["model.embed_tokens.weight"])
    save_file({name: tensor for name, tensor in tensors.items() if name != alias}, file)
    check_tensors(Checkpoint(directory), table)
    save_file({**tensors, alias: tensors[alias] + 1}, file)
    with pytest.raises(UserError, match=rf"{re.escape(alias)} differs from model.embed_tokens.weight, but the model shares them"):
        check_tensors(Checkpoint(directory), table)
