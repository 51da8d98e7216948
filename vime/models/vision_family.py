"""Families whose model is a decoder with, or without, a vision tower in front of it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vime.errors import UserError
from vime.models.base import Built, HfConfig, Stored, WeightTable, text_config
from vime.models.decoder import Decoder, GroupedQuery
from vime.models.names import table_of
from vime.models.rules import Rule, Shape, Whole
from vime.models.text import TextFamily

if TYPE_CHECKING:
    import torch

    from vime.config.tree import ParallelConfig

TOWER = "vision.module."  # the tower's parameters in the module
VISUAL = "model.visual."  # … and in a checkpoint
SECTIONS = (24, 20, 20)  # frequencies of time, height and width, unless config.json says otherwise


class VisionFamily(TextFamily):
    """`vision_config` in config.json says whether there is a tower."""

    vision = True
    sections: tuple[int, int, int] = SECTIONS

    def weight_table(self, hf_config: HfConfig, *, mtp: bool = False) -> WeightTable:
        decoder = self.decoder(hf_config)
        rules = self.rules(decoder, mtp=mtp) | self.tower_rules(hf_config)
        return table_of(
            rules,
            experts=decoder.experts.count if decoder.experts else 0,
            tied_head=decoder.tied,
            aliases={decoder.head: f"{decoder.prefix}embed_tokens.weight"} if decoder.tied else {},
            ignored=None if mtp else re.compile(r"^mtp\."),
            draft=frozenset(name for rule in rules.values() for name in rule.tensors() if name.startswith("mtp.")),
            stored=functools.partial(self.stored, decoder),
        )

    def stored(self, decoder: Decoder, name: str) -> Stored | None:
        """Another form in which checkpoints hold a tensor."""
        return None

    def tower_rules(self, hf_config: HfConfig) -> dict[str, Rule]:
        """Every rank that has the tower has all of it."""
        if not sees(hf_config):
            return {}
        shapes = tower_shapes(json.dumps(tower_config(hf_config), sort_keys=True))
        return {f"{TOWER}{name}": Whole(f"{VISUAL}{name}", shape) for name, shape in shapes.items()}

    def megatron_config(self, hf_config: HfConfig, parallel: ParallelConfig, overrides: Mapping[str, Any], *, mtp: bool = False) -> Any:
        if not sees(hf_config):
            return super().megatron_config(hf_config, parallel, overrides, mtp=mtp)
        if mtp:
            raise UserError("multi-token-prediction layers of a model with images are not supported: take out train.mtp.loss_weight and rollout.speculative")
        if parallel.context > 1:
            raise UserError(f"parallel.context {parallel.context}: context parallelism of a model with images is not supported: use 1")
        config = super().megatron_config(hf_config, parallel, {"mrope_section": list(self.mrope_sections(hf_config)), **overrides}, mtp=mtp)
        if config.apply_rope_fusion:
            raise UserError("megatron.model.apply_rope_fusion: fused rotary kernels count each sequence from 0, which is wrong with images: take it out")
        check_deepstack(hf_config, config)
        return config

    def mrope_sections(self, hf_config: HfConfig) -> tuple[int, ...]:
        text = text_config(hf_config)
        given = {**(text.get("rope_scaling") or {}), **(text.get("rope_parameters") or {})}
        return tuple(given.get("mrope_section") or self.sections)

    def build(self, built: Built) -> torch.nn.Module:
        if not sees(built.hf_config):
            return self.gpt(built, **self.draft(built))
        from vime.models.mrope import InterleavedRotary
        from vime.models.vision import VisionGPTModel

        decoder = self.decoder(built.hf_config)
        assert isinstance(decoder.attention, GroupedQuery)
        rotary = InterleavedRotary(decoder.attention.head_dim, decoder.rope.theta, self.mrope_sections(built.hf_config), decoder.rope.percent)
        return self.gpt(
            built,
            kind=VisionGPTModel,
            position_embedding_type="mrope",
            vision_config=tower_config(built.hf_config),
            rotary=rotary,
        )

    def draft(self, built: Built) -> dict[str, Any]:
        """Options of the model's constructor for multi-token-prediction layers of another kind than Megatron's."""
        return {}

    def adapt_layer(self, layer: Any, decoder: Decoder, built: Built) -> None:
        super().adapt_layer(layer, decoder, built)
        if sees(built.hf_config):
            from vime.models.vision import DeepstackLayer

            layer.module = DeepstackLayer


def sees(hf_config: HfConfig) -> bool:
    """Whether the model has a vision tower."""
    return hf_config.get("vision_config") is not None


def tower_config(hf_config: HfConfig) -> dict[str, Any]:
    """The vision_config; published ones name the whole model's type."""
    config = dict(hf_config["vision_config"])
    kind = config.get("model_type") or hf_config["model_type"]
    config["model_type"] = kind if kind.endswith("_vision") else f"{kind}_vision"
    return config


@functools.lru_cache(maxsize=4)
def tower_shapes(vision_config: str) -> dict[str, Shape]:
    """Every tensor of Hugging Face's tower, by name, for a vision_config as JSON."""
    import torch

    from vime.models.vision import hugging_face_tower

    with torch.device("meta"):
        tower = hugging_face_tower(json.loads(vision_config))
    return {name: tuple(tensor.shape) for name, tensor in tower.named_parameters()}


def check_deepstack(hf_config: HfConfig, megatron: Any) -> None:
    """The layers that take deepstack features must be on the first pipeline stage, where the tower is. Raises UserError with both numbers."""
    levels = len(hf_config["vision_config"].get("deepstack_visual_indexes") or ())
    stages = megatron.pipeline_model_parallel_size
    if not levels or stages == 1:
        return
    first = megatron.num_layers_in_first_pipeline_stage or megatron.num_layers // stages
    if first < levels:
        raise UserError(
            f"parallel.pipeline {stages}: the first stage has {first} layers, but the vision tower's features go into the first {levels}: "
            "use fewer stages, or set megatron.model.num_layers_in_first_pipeline_stage"
        )
