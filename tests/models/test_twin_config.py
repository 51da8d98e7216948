"""Twins are made by one function from the published facts: same class, same flags, every deviation listed; the matrix holds what it makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.models.families import LLAMA_3_2, MODELS, architecture
from vime.models.decoder import Latent
from vime.models.registry import REFUSED, family_for
from vime.models.twin_config import twin_config
from vime.models.vision_twin import nested_twin

PUBLISHED = sorted(file.stem for file in MODELS.glob("*.yaml"))
NOT_HERE = (*REFUSED, "qwen3_omni_moe")
TEXT = [name for name in PUBLISHED if "text_config" not in architecture(name) and architecture(name)["model_type"] not in NOT_HERE]
NESTED = ["qwen3-vl-8b", "qwen3-vl-30b-a3b", "qwen3.5-27b", "qwen3.5-35b-a3b"]
BY_HAND = ["qwen3-4b"]  # written before the function; its recorded baselines keep its wording
FLAGS = [
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
    "norm_topk_prob",
    "scoring_func",
    "topk_method",
    "n_shared_experts",
    "use_qk_norm",
    "qk_norm_type",
    "partial_rotary_factor",
    "num_nextn_predict_layers",
    "moe_layer_freq",
    "decoder_sparse_step",
    "rms_norm_eps",
    "routed_scaling_factor",
    "use_routing_bias",
    "model_type",
    "architectures",
]


def declared(name: str) -> dict[str, Any]:
    return dict(YAML(typ="safe").load(MODELS / f"{name}.yaml"))


@pytest.mark.parametrize("name", [name for name in TEXT if name not in BY_HAND])
def test_the_matrix_holds_the_twin_that_the_function_makes(name):
    made, held = twin_config(architecture(name)), declared(name)["twin"]
    assert held["config"] == made.config
    assert [(one["ratio"], one["model"], one["twin"], one["reason"]) for one in held["deviations"]] == [
        (one.ratio, one.model, one.twin, one.reason) for one in made.deviations
    ]
    assert held.get("keeps", []) == list(made.keeps)


@pytest.mark.parametrize("name", NESTED)
def test_the_matrix_holds_the_twin_of_a_nested_model(name):
    made, held = nested_twin(architecture(name)), declared(name)["twin"]
    assert held["config"] == made.config
    assert [(one["ratio"], one["model"], one["twin"], one["reason"]) for one in held["deviations"]] == [
        (one.ratio, one.model, one.twin, one.reason) for one in made.deviations
    ]
    assert held.get("keeps", []) == list(made.keeps)


@pytest.mark.parametrize("name", NESTED)
def test_a_nested_twin_keeps_class_flags_and_both_kinds_of_layers(name):
    model, twin = architecture(name), nested_twin(architecture(name)).config
    assert twin["architectures"] == model["architectures"] and twin["model_type"] == model["model_type"]
    for part in ("text_config", "vision_config"):
        assert twin[part].keys() >= model[part].keys()
        same = [key for key, value in model[part].items() if isinstance(value, bool | str) and key not in ("dtype",)]
        assert {key: twin[part][key] for key in same} == {key: model[part][key] for key in same}
    assert set(twin["text_config"].get("layer_types") or ()) == set(model["text_config"].get("layer_types") or ())
    assert bool(twin["vision_config"].get("deepstack_visual_indexes")) == bool(model["vision_config"].get("deepstack_visual_indexes"))
    alone = nested_twin(model, sees=False).config
    assert alone["model_type"] == model["text_config"]["model_type"] and "vision_config" not in alone


@pytest.mark.parametrize("name", TEXT)
def test_a_twin_keeps_class_and_flags(name):
    model, twin = architecture(name), twin_config(architecture(name)).config
    for flag in FLAGS:
        assert twin.get(flag) == model.get(flag), flag
    assert (twin.keys() - model.keys()) <= {"pad_token_id", "bos_token_id", "eos_token_id", "torch_dtype", "dtype"}


@pytest.mark.parametrize("name", TEXT)
def test_a_twin_takes_every_path_of_its_model(name):
    """The facts that choose code: kind of attention, norms, biases, grouping, dense and sparse layers, shared expert, MTP, rotary scaling, head."""
    config = architecture(name)
    family: Any = family_for(config)
    assert family_for(twin_config(config).config) is family
    model, twin = family.decoder(config), family.decoder(twin_config(config).config)
    assert (model.tied, model.mtp, model.mlp_bias, model.rope.kind, model.rope.percent) == (
        twin.tied,
        twin.mtp,
        twin.mlp_bias,
        twin.rope.kind,
        twin.rope.percent,
    )
    assert type(model.attention) is type(twin.attention)
    if isinstance(model.attention, Latent):
        assert (model.attention.q_rank is None) == (twin.attention.q_rank is None)
    else:
        assert (model.attention.qkv_bias, model.attention.out_bias, model.attention.qk_norm) == (
            twin.attention.qkv_bias,
            twin.attention.out_bias,
            twin.attention.qk_norm,
        )
        assert (model.attention.heads > model.attention.kv_heads) == (twin.attention.heads > twin.attention.kv_heads)
    assert {*model.sparse} == {*twin.sparse}
    if model.experts:
        ours, theirs = model.experts, twin.experts
        assert (ours.score, ours.bias, ours.scale, ours.normalise, ours.shared_gate) == (
            theirs.score,
            theirs.bias,
            theirs.scale,
            theirs.normalise,
            theirs.shared_gate,
        )
        assert (ours.shared > 0, ours.groups > 1) == (theirs.shared > 0, theirs.groups > 1) and 1 < theirs.top_k < theirs.count


def test_scaled_rotary_embeddings_are_scaled_within_the_twins_positions():
    twin = twin_config(LLAMA_3_2)
    assert twin.config["rope_scaling"] == {**LLAMA_3_2["rope_scaling"], "original_max_position_embeddings": 32}
    (one,) = [one for one in twin.deviations if one.ratio == "rope_scaling.original_max_position_embeddings"]
    assert (one.model, one.twin) == (8192, 32)


def test_models_of_one_shape_share_their_twin():
    assert twin_config(architecture("qwen3-8b")).config == twin_config(architecture("qwen3-32b")).config
    assert twin_config(architecture("deepseek-v3")).config == twin_config(architecture("deepseek-r1")).config


def test_the_command_prints_what_the_matrix_holds(tmp_path: Path, capsys):
    from vime.models.listing import twin

    (tmp_path / "config.json").write_text(json.dumps(architecture("glm-4.7-flash")))
    block = YAML(typ="safe").load(twin(tmp_path / "config.json", tmp_path / "out"))
    held = declared("glm-4.7-flash")["twin"]
    assert {key: value for key, value in held.items() if key != "warm_starts"} == block["twin"]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "glm4_moe_lite"
