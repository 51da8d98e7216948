"""Llama 3: GQA, SwiGLU, scaled rotary embedding, tied or untied; biases where config.json asks for them."""

from __future__ import annotations

from vime.errors import UserError
from vime.models.base import HfConfig, need, setting, tied
from vime.models.decoder import Decoder, GroupedQuery
from vime.models.qwen3 import refuse_other
from vime.models.rope import read_rope
from vime.models.text import TextFamily


class Llama(TextFamily):
    """Hugging Face's LlamaForCausalLM."""

    name = "llama"
    title = "Llama 3"
    model_types = ("llama",)

    def decoder(self, hf_config: HfConfig) -> Decoder:
        refuse_other(hf_config, self.name, hidden_act="silu", pretraining_tp=1)
        heads, hidden = need(hf_config, "num_attention_heads"), need(hf_config, "hidden_size")
        bias, mlp_bias = setting(hf_config, "attention_bias", False), setting(hf_config, "mlp_bias", False)
        if mlp_bias and not bias:
            raise UserError("config.json: mlp_bias true with attention_bias false is not supported by the llama family: Megatron-Core has one flag for both")
        attention = GroupedQuery(
            heads=heads,
            kv_heads=setting(hf_config, "num_key_value_heads", heads),
            head_dim=setting(hf_config, "head_dim", hidden // heads),
            qkv_bias=bias,
            out_bias=bias,
        )
        return Decoder(
            layers=need(hf_config, "num_hidden_layers"),
            hidden=hidden,
            ffn=need(hf_config, "intermediate_size"),
            vocab=need(hf_config, "vocab_size"),
            eps=setting(hf_config, "rms_norm_eps", 1e-6),
            tied=tied(hf_config),
            attention=attention,
            rope=read_rope(hf_config),
            max_positions=setting(hf_config, "max_position_embeddings", 2048),
            mlp_bias=mlp_bias,
        )
