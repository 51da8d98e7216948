"""Every family of the tests: adding one is one entry here.

`published`: the model whose facts in matrix/models it is made from, or facts of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from vime.models.twin_config import twin_config
from vime.models.vision_twin import nested_twin

MODELS = Path(__file__).parents[2] / "matrix" / "models"


@dataclass(frozen=True)
class Case:
    """A model of the tests. `changes`: keys of the twin's config.json set otherwise. `text`: of a model with a vision tower its text model alone.
    `engine_dtype`: in which vLLM's CPU build serves it. `tolerance`: largest difference from Hugging Face's logits."""

    name: str
    published: str | dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    text: bool = False
    engine_dtype: str = "float32"
    tolerance: float = 2e-5  # the largest seen is 6e-6; the bar is 1e-4

    @property
    def config(self) -> dict[str, Any]:
        """The twin's config.json."""
        facts = architecture(self.published) if isinstance(self.published, str) else self.published
        twin = nested_twin(facts, sees=not self.text) if "text_config" in facts else twin_config(facts)
        return {**twin.config, **self.changes}

    @property
    def sees(self) -> bool:
        """Whether it has a vision tower."""
        return "vision_config" in self.config

    def deeper(self, layers: int) -> dict[str, Any]:
        """The twin with so many layers, those added of the last one's kind."""
        config = dict(self.config)
        inner = dict(config.get("text_config") or config)
        for key in ("attn_type_list", "mlp_layer_types", "layer_types"):
            if inner.get(key):
                inner[key] = [*inner[key], *[inner[key][-1]] * layers][:layers]
        inner["num_hidden_layers"] = layers
        return {**config, "text_config": inner} if "text_config" in config else inner

    @property
    def experts(self) -> int:
        config = self.config.get("text_config") or self.config
        return next((int(config[key]) for key in ("num_experts", "n_routed_experts", "num_local_experts") if config.get(key)), 0)

    @property
    def mtp(self) -> int:
        """Multi-token-prediction layers that can be trained."""
        return 0 if self.sees else int(self.config.get("num_nextn_predict_layers") or self.config.get("mtp_num_hidden_layers") or 0)


@cache
def architecture(name: str) -> dict[str, Any]:
    """The published config.json of a model of the matrix."""
    return dict(YAML(typ="safe").load(MODELS / f"{name}.yaml")["architecture"])


LLAMA_3_2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "max_position_embeddings": 131072,
}

CASES = [
    Case("qwen3", "qwen3-4b"),
    Case("qwen3-untied", "qwen3-8b"),
    Case("qwen3-moe", "qwen3-30b-a3b"),
    Case("llama", "llama-3"),
    Case("llama-scaled", LLAMA_3_2),
    Case("glm4-moe", "glm-4.7"),
    Case("glm4-moe-lite", "glm-4.7-flash"),
    Case("deepseek-v3", "deepseek-v3"),
    Case("moonlight", "moonlight-16b-a3b"),
    Case("minimax-m2", "minimax-m2.5"),
    Case("qwen3-vl", "qwen3-vl-8b"),
    Case("qwen3-vl-moe", "qwen3-vl-30b-a3b"),
    Case("qwen3-5", "qwen3.5-27b", text=True, engine_dtype="bfloat16", tolerance=5e-5),
    Case("qwen3-5-moe", "qwen3.5-35b-a3b", text=True, engine_dtype="bfloat16", tolerance=5e-5),
    Case("qwen3-5-vl", "qwen3.5-27b", engine_dtype="bfloat16", tolerance=5e-5),
    Case("qwen3-5-moe-vl", "qwen3.5-35b-a3b", engine_dtype="bfloat16", tolerance=5e-5),
]
BY_NAME = {case.name: case for case in CASES}
