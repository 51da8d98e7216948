"""GLM-4.5, 4.6 and 4.7: GQA with biases and half-rotated heads, DeepSeek-V3's routing, a shared expert, dense first layers, multi-token prediction."""

from __future__ import annotations

from vime.models.base import HfConfig, need, setting, tied
from vime.models.decoder import Decoder, GroupedQuery
from vime.models.deepseek_v3 import corrected_experts, mtp_count, sparse_layers
from vime.models.qwen3 import refuse_other
from vime.models.rope import read_rope
from vime.models.text import TextFamily


class Glm4Moe(TextFamily):
    """Hugging Face's Glm4MoeForCausalLM."""

    name = "glm4-moe"
    title = "GLM-4.5 to 4.7"
    model_types = ("glm4_moe",)
    has_experts = True

    def decoder(self, hf_config: HfConfig) -> Decoder:
        refuse_other(hf_config, self.name, hidden_act="silu")
        heads, hidden, layers = (need(hf_config, key) for key in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
        attention = GroupedQuery(
            heads=heads,
            kv_heads=setting(hf_config, "num_key_value_heads", 8),
            head_dim=setting(hf_config, "head_dim", hidden // heads),
            qkv_bias=setting(hf_config, "attention_bias", False),
            qk_norm="head" if setting(hf_config, "use_qk_norm", False) else None,
        )
        return Decoder(
            layers=layers,
            hidden=hidden,
            ffn=need(hf_config, "intermediate_size"),
            vocab=need(hf_config, "vocab_size"),
            eps=setting(hf_config, "rms_norm_eps", 1e-5),
            tied=tied(hf_config),
            attention=attention,
            rope=read_rope(hf_config, percent=0.5),
            max_positions=setting(hf_config, "max_position_embeddings", 131072),
            experts=corrected_experts(hf_config, self.name),
            sparse=sparse_layers(hf_config, layers, dense=1),
            mtp=mtp_count(hf_config),
        )
