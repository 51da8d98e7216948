"""MiniMax-M2 and M2.5: GQA whose queries and keys are normed over all heads together, partly rotated heads, sigmoid routing with a correction bias, no shared
expert and no dense layers. The MTP modules its config.json names are not in the published checkpoints."""

from __future__ import annotations

from vime.errors import UserError
from vime.models.base import HfConfig, need, setting, tied
from vime.models.decoder import Decoder, Experts, GroupedQuery, Names
from vime.models.qwen3 import refuse_other
from vime.models.rope import read_rope
from vime.models.text import TextFamily

NAMES = Names(
    router="block_sparse_moe.gate.weight",
    bias="block_sparse_moe.e_score_correction_bias",
    gate="block_sparse_moe.experts.{e}.w1.weight",
    up="block_sparse_moe.experts.{e}.w3.weight",
    down="block_sparse_moe.experts.{e}.w2.weight",
)


class MiniMaxM2(TextFamily):
    """Hugging Face's MiniMaxM2ForCausalLM."""

    name = "minimax-m2"
    title = "MiniMax M2, M2.5"
    model_types = ("minimax_m2",)
    has_experts = True

    def decoder(self, hf_config: HfConfig) -> Decoder:
        refuse_other(hf_config, self.name, hidden_act="silu", use_qk_norm=True, qk_norm_type="per_layer", scoring_func="sigmoid", use_routing_bias=True)
        refuse_other(hf_config, self.name, shared_intermediate_size=0)
        heads, layers, head_dim = (need(hf_config, key) for key in ("num_attention_heads", "num_hidden_layers", "head_dim"))
        kinds = setting(hf_config, "attn_type_list", [1] * layers)
        if set(kinds) != {1}:
            raise UserError("config.json: attn_type_list holds layers that are not full attention (1), which the minimax-m2 family does not support")
        ffn = need(hf_config, "intermediate_size")
        rotary = setting(hf_config, "rotary_dim", head_dim)
        return Decoder(
            layers=layers,
            hidden=need(hf_config, "hidden_size"),
            ffn=ffn,
            vocab=need(hf_config, "vocab_size"),
            eps=setting(hf_config, "rms_norm_eps", 1e-6),
            tied=tied(hf_config),
            attention=GroupedQuery(heads, setting(hf_config, "num_key_value_heads", 8), head_dim, qk_norm="full"),
            rope=read_rope(hf_config, percent=rotary / head_dim, theta=5000000.0),
            max_positions=setting(hf_config, "max_position_embeddings", 196608),
            experts=Experts(need(hf_config, "num_local_experts"), need(hf_config, "num_experts_per_tok"), ffn, "sigmoid", bias=True),
            sparse=(True,) * layers,
            names=NAMES,
        )
