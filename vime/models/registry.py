"""Which family a model belongs to."""

from __future__ import annotations

from vime.errors import UserError
from vime.models.base import Family, HfConfig
from vime.models.deepseek_v3 import DeepseekV3, Glm4MoeLite
from vime.models.glm4_moe import Glm4Moe
from vime.models.llama import Llama
from vime.models.minimax_m2 import MiniMaxM2
from vime.models.qwen3 import Qwen3, Qwen3Moe
from vime.models.qwen3_5 import Qwen3_5, Qwen3_5Moe
from vime.models.qwen3_vl import Qwen3VL, Qwen3VLMoe

FAMILIES: list[Family] = [
    Qwen3(),
    Qwen3Moe(),
    Qwen3VL(),
    Qwen3VLMoe(),
    Qwen3_5(),
    Qwen3_5Moe(),
    Llama(),
    Glm4Moe(),
    Glm4MoeLite(),
    DeepseekV3(),
    MiniMaxM2(),
]
# model types known well enough to say why they cannot be trained
REFUSED = {
    "glm_moe_dsa": "Megatron-Core 0.16 has its sparse attention (an indexer picks index_topk keys a query) for CUDA in bfloat16 and without packed sequences "
    "alone; full attention in its place would differ from the engine on every sequence longer than index_topk",
}


def family_for(hf_config: HfConfig, where: str = "config.json") -> Family:
    """The family of a config.json. Raises UserError naming the model type, the file and the families there are."""
    for family in FAMILIES:
        if family.matches(hf_config):
            return family
    model_type = str(hf_config.get("model_type"))
    if model_type in REFUSED:
        raise UserError(f"{where}: model_type {model_type!r} is not supported: {REFUSED[model_type]}")
    known = ", ".join(family.name for family in FAMILIES)
    raise UserError(
        f"{where}: model_type {model_type!r} (architectures {hf_config.get('architectures')}) is of no family vime knows: {known}; "
        "a new family is one file in vime/models/"
    )
