"""Which family a model belongs to."""

from __future__ import annotations

from vime.errors import UserError
from vime.models.base import Family, HfConfig
from vime.models.qwen3 import Qwen3

FAMILIES: list[Family] = [Qwen3()]


def family_for(hf_config: HfConfig, where: str = "config.json") -> Family:
    """The family of a config.json. Raises UserError naming the model type, the file and the families there are."""
    for family in FAMILIES:
        if family.matches(hf_config):
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise UserError(
        f"{where}: model_type {hf_config.get('model_type')!r} (architectures {hf_config.get('architectures')}) is of no family vime knows: {known}; "
        "a new family is one file in vime/models/"
    )
