"""Twins of models whose config.json nests a text_config: vision-language models, and Qwen3.5 with or without its tower."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vime.models.twin_config import HEAD_DIM, RATIOS, SMALL, Ratio, Twin, listed, ratio, twin_config
from vime.models.twins import VISION_IDS

LAYERS = 4  # so that a pipeline of two still has every layer with deepstack features on its first stage, and linear and full attention both occur
LINEAR_HEADS = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
TOWER = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 8,
    "num_position_embeddings": 36,  # a grid of 6, resampled to the images' 4 by 4
}
DEEPSTACK = [0, 2]

NESTED = (
    ratio("num_hidden_layers", why="four layers: linear and full attention both occur, and a pipeline of two keeps deepstack's layers on its first stage"),
    ratio("len(layer_types)", "num_hidden_layers", why="one entry a layer"),
    ratio("linear_num_value_heads", "linear_num_key_heads", why="still several value heads a key head; two key heads let tensor parallelism of 2 split them"),
    ratio("linear_key_head_dim", why="the smallest that vLLM's CPU gated delta net accepts"),
    ratio("linear_value_head_dim", why="the smallest that vLLM's CPU gated delta net accepts"),
    ratio(
        "shared_expert_intermediate_size", "moe_intermediate_size", why="unequal to the routed experts', so that code which takes one for the other is caught"
    ),
    ratio("len(rope_scaling.mrope_section)", why="time, height and width"),
    ratio("len(rope_parameters.mrope_section)", why="time, height and width"),
    ratio("rope_parameters.rope_theta", why="contexts of at most 64 positions; the longer base would leave most rotary frequencies unused"),
)
VISION = (
    ratio("vision_config.depth", why=SMALL),
    ratio("vision_config.hidden_size", "text_config.hidden_size", why=SMALL),
    ratio("vision_config.intermediate_size", "vision_config.hidden_size", why=SMALL),
    ratio("vision_config.hidden_size", "vision_config.num_heads", why=SMALL),
    ratio("vision_config.out_hidden_size", "text_config.hidden_size", why="equal"),
    ratio("vision_config.initializer_range", why="used only when the warm start is made"),
    ratio("vision_config.patch_size", why="images of 32 by 32 become 4 by 4 patches"),
    ratio("vision_config.num_position_embeddings", why="a grid of 6 is still resampled to the images' 4"),
    ratio("len(vision_config.deepstack_visual_indexes)", why="two levels: more than one, and no more than half of the text model's layers"),
)


def nested_twin(hf_config: Mapping[str, Any], *, sees: bool = True) -> Twin:
    """The twin of a config.json with a text_config. Not `sees`: its text model alone, as a checkpoint of its own."""
    config = copy.deepcopy(dict(hf_config))
    text = _text(config["text_config"])
    if not sees:
        text["architectures"] = [config["architectures"][0].replace("ForConditionalGeneration", "ForCausalLM")]
        return listed(hf_config["text_config"], text, _unnested(RATIOS, NESTED))
    tower = config["vision_config"]
    tower.update(TOWER, out_hidden_size=text["hidden_size"], initializer_range=text["initializer_range"])
    if tower.get("deepstack_visual_indexes"):
        tower["deepstack_visual_indexes"] = DEEPSTACK
    config.update(VISION_IDS, text_config=text)
    return listed(hf_config, config, tuple(_nested(entry) for entry in _unnested(RATIOS, NESTED)) + VISION)


def _text(published: Mapping[str, Any]) -> dict[str, Any]:
    text = twin_config(published).config
    text["num_hidden_layers"] = LAYERS
    if "intermediate_size" not in published:  # every layer has experts
        del text["intermediate_size"]
    if "layer_types" in text:
        text["layer_types"] = published["layer_types"][:LAYERS]
        text.update(LINEAR_HEADS)
    if "shared_expert_intermediate_size" in text:
        text["shared_expert_intermediate_size"] = 96
    rotary = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if "mrope_section" in rotary:
        rotary["mrope_section"] = sections(int(HEAD_DIM * rotary.get("partial_rotary_factor", 1.0)) // 2)
    return text


def sections(frequencies: int) -> list[int]:
    """Frequencies of time, height and width in the published proportions: time gets what the other two leave."""
    other = frequencies * 5 // 16
    return [frequencies - 2 * other, other, other]


def _unnested(common: tuple[Ratio, ...], own: tuple[Ratio, ...]) -> tuple[Ratio, ...]:
    texts = {entry.text for entry in own}
    return (*own, *(entry for entry in common if entry.text not in texts))


def _nested(entry: Ratio) -> Ratio:
    return replace(entry, over=tuple(map(_key, entry.over)), under=tuple(map(_key, entry.under)))


def _key(key: str) -> str:
    return f"len(text_config.{key[4:]}" if key.startswith("len(") else f"text_config.{key}"
