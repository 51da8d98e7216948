"""What all decoder-only families share: from `Decoder` (the facts of a config.json) to Megatron's configuration, its model and the weight table.

A family file reads config.json into a `Decoder` and names its tensors; it overrides a method here only where its model differs in kind.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vime.config.tree import ParallelConfig
from vime.errors import UserError
from vime.models import rope
from vime.models.base import Built, Family, HfConfig, ModelShape, WeightTable, padded_vocab, share
from vime.models.decoder import Decoder, GroupedQuery, Latent, decoder_rules, has_transformer_engine, layer_rules, mtp_aliases
from vime.models.names import table_of

if TYPE_CHECKING:
    import torch
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer import TransformerConfig


class TextFamily(Family):
    """A family whose model is one decoder."""

    local_prefix = ""  # of the decoder's parameters in the module, where there is more than a decoder

    @abstractmethod
    def decoder(self, hf_config: HfConfig) -> Decoder:
        """The facts of config.json. Raises UserError on a setting the family does not support."""

    def mtp_layers(self, hf_config: HfConfig) -> int:
        return self.decoder(hf_config).mtp

    def shape(self, hf_config: HfConfig) -> ModelShape:
        decoder = self.decoder(hf_config)
        return ModelShape(decoder.vocab, decoder.max_positions, decoder.rope.theta, decoder.tied, decoder.rope.percent)

    # ---- the weight table --------------------------------------------------------------------------------------------------------------------------

    def weight_table(self, hf_config: HfConfig, *, mtp: bool = False) -> WeightTable:
        decoder = self.decoder(hf_config)
        rules = self.rules(decoder, mtp=mtp)
        own = set().union(*(rule.tensors() for rule in rules.values()))
        unused = re.compile("|".join(rf"^{re.escape(decoder.prefix)}layers\.{index}\." for index in range(decoder.layers, decoder.layers + decoder.mtp)))
        aliases = {decoder.head: f"{decoder.prefix}embed_tokens.weight"} if decoder.tied else {}
        if mtp:
            aliases |= mtp_aliases(decoder)
        return table_of(
            rules,
            prefix=self.local_prefix,
            experts=decoder.experts.count if decoder.experts else 0,
            tied_head=decoder.tied,
            ignored=unused if decoder.mtp and not mtp else None,
            aliases=aliases,
            draft=frozenset(name for name in own if decoder.mtp and unused.match(name)),
            float32=frozenset(name for rule_name, rule in rules.items() if rule_name.endswith("router.expert_bias") for name in rule.tensors()),
        )

    def rules(self, decoder: Decoder, *, mtp: bool) -> dict[str, Any]:
        """The entries of the table; a family with other kinds of layers passes its own `layer`."""
        return decoder_rules(decoder, mtp=mtp, local=self.local_prefix, layer=layer_rules)

    def exported_config(self, hf_config: HfConfig, *, mtp: bool = False) -> dict[str, Any]:
        """As read, with the tie made explicit; a model trained without its MTP layers is exported without them."""
        out = {**hf_config, "tie_word_embeddings": self.decoder(hf_config).tied}
        for key in ("num_nextn_predict_layers", "num_mtp_layers"):
            if key in out and not mtp:
                out[key] = 0
        return out

    # ---- Megatron's configuration ------------------------------------------------------------------------------------------------------------------

    def megatron_config(self, hf_config: HfConfig, parallel: ParallelConfig, overrides: Mapping[str, Any], *, mtp: bool = False) -> TransformerConfig:
        from megatron.core.transformer import MLATransformerConfig, TransformerConfig

        decoder = self.decoder(hf_config)
        self.check_layout(hf_config, parallel)
        values = {**self.megatron_values(decoder), **({"mtp_num_layers": decoder.mtp} if mtp and decoder.mtp else {}), **overrides}
        return (MLATransformerConfig if isinstance(decoder.attention, Latent) else TransformerConfig)(**values)

    def check_layout(self, hf_config: HfConfig, parallel: ParallelConfig) -> None:
        check_layout(self.decoder(hf_config), parallel)

    def megatron_values(self, decoder: Decoder) -> dict[str, Any]:
        """Fields of the TransformerConfig that follow from the architecture."""
        import torch

        values: dict[str, Any] = {
            "num_layers": decoder.layers,
            "hidden_size": decoder.hidden,
            "ffn_hidden_size": decoder.ffn,
            "num_attention_heads": decoder.attention.heads,
            "normalization": "RMSNorm",
            "layernorm_epsilon": decoder.eps,
            "gated_linear_unit": True,
            "activation_func": torch.nn.functional.silu,
            "add_bias_linear": decoder.mlp_bias,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        }
        attention = latent_values(decoder) if isinstance(decoder.attention, Latent) else grouped_values(decoder)
        return values | attention | (expert_values(decoder) if decoder.experts else {})

    # ---- the model ---------------------------------------------------------------------------------------------------------------------------------

    def build(self, built: Built) -> torch.nn.Module:
        return self.gpt(built)

    def gpt(self, built: Built, *, kind: type[GPTModel] | None = None, **options: Any) -> GPTModel:
        """The decoder as Megatron's GPTModel, or a `kind` of it; `options` go to its constructor."""
        from megatron.core.models.gpt.gpt_model import GPTModel

        decoder = self.decoder(built.hf_config)
        spec = self.layer_spec(decoder, built)
        model = (kind or GPTModel)(
            config=built.megatron,
            transformer_layer_spec=spec,
            vocab_size=padded_vocab(built.shape.vocab_size, built.layout.tp_size),
            max_sequence_length=built.shape.max_position_embeddings,
            pre_process=built.first,
            post_process=built.last,
            parallel_output=True,
            share_embeddings_and_output_weights=built.shape.tied,
            **{
                "position_embedding_type": "rope",
                "rotary_percent": built.shape.rotary_percent,
                "rotary_base": built.shape.rotary_base,
                "mtp_block_spec": mtp_spec(built, spec),
                **options,
            },
        )
        if hasattr(model, "rotary_pos_emb") and isinstance(decoder.attention, GroupedQuery):
            rope.install(model, decoder.rope)
        return model

    def layer_spec(self, decoder: Decoder, built: Built) -> Any:
        """The layers of this rank's stage, as Megatron's TransformerBlockSubmodules."""
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

        local = built.core_attention is not None
        spec = get_gpt_decoder_block_spec(built.megatron, use_transformer_engine=not local, normalization="RMSNorm")
        for layer in spec.layer_specs:
            self.adapt_layer(layer, decoder, built)
        return spec

    def adapt_layer(self, layer: Any, decoder: Decoder, built: Built) -> None:
        """Put in what Megatron has no flag for. Layers of one kind share their specification, so this may be done to it again."""
        from vime.models.modules import LatentAttention, full_norm, with_bias

        attention, parts = decoder.attention, layer.submodules.self_attention.submodules
        if built.core_attention is not None:
            parts.core_attention = built.core_attention
        if built.core_attention is not None and isinstance(attention, Latent):
            layer.submodules.self_attention.module = LatentAttention
        if isinstance(attention, GroupedQuery) and attention.qk_norm == "full":
            parts.q_layernorm, parts.k_layernorm = full_norm(attention.heads), full_norm(attention.kv_heads)
        if isinstance(attention, GroupedQuery) and attention.out_bias and not decoder.mlp_bias:
            parts.linear_proj = with_bias(parts.linear_proj)


def mtp_spec(built: Built, spec: Any) -> Any:
    """The multi-token-prediction layers, where this rank's stage holds them; else None."""
    if not built.mtp or not built.megatron.mtp_num_layers:
        return None
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec

    return get_gpt_mtp_block_spec(built.megatron, spec, use_transformer_engine=built.core_attention is None)


def grouped_values(decoder: Decoder) -> dict[str, Any]:
    attention = decoder.attention
    assert isinstance(attention, GroupedQuery)
    if decoder.rope.scale < 1.0:
        raise UserError(f"config.json: a rotary embedding whose cos and sin are scaled by {decoder.rope.scale:g} is not supported: only factors from 1 up are")
    return {
        "num_query_groups": attention.kv_heads,
        "kv_channels": attention.head_dim,
        "qk_layernorm": attention.qk_norm == "head",  # of all heads together: `FullNorm`, whose weight is split; Megatron would sum its gradient over ranks
        "add_qkv_bias": attention.qkv_bias,
    }


def latent_values(decoder: Decoder) -> dict[str, Any]:
    """Multi-head latent attention. Megatron multiplies the softmax scale by YaRN's factor whatever the rotary kind, so that factor is 1 without YaRN."""
    attention, turning = decoder.attention, decoder.rope
    assert isinstance(attention, Latent)
    values: dict[str, Any] = {
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "q_lora_rank": attention.q_rank,
        "kv_lora_rank": attention.kv_rank,
        "qk_head_dim": attention.nope,
        "qk_pos_emb_head_dim": attention.rope,
        "v_head_dim": attention.value,
        "kv_channels": attention.nope + attention.rope,
        "rotary_base": turning.theta,
        "rotary_percent": 1.0,
        "rope_type": "rope",
        "rotary_scaling_factor": 1.0,
        "mscale_all_dim": 0.0,
    }
    if turning.kind == "yarn":
        values |= {
            "rope_type": "yarn",
            "rotary_scaling_factor": turning.factor,
            "original_max_position_embeddings": turning.original,
            "beta_fast": turning.beta_fast,
            "beta_slow": turning.beta_slow,
            "mscale": turning.mscale or 0.0,
            "mscale_all_dim": turning.mscale_all_dim or 0.0,
        }
    return values


def expert_values(decoder: Decoder) -> dict[str, Any]:
    """Routed experts. No auxiliary loss and no update of the correction bias by default: the policy gradient alone moves the weights."""
    experts = decoder.experts
    assert experts is not None
    grouped = experts.groups > 1
    return {
        "num_moe_experts": experts.count,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_router_topk": experts.top_k,
        "moe_router_score_function": experts.score,
        "moe_router_pre_softmax": experts.score == "softmax" and not experts.normalise,
        "moe_router_num_groups": experts.groups if grouped else None,
        "moe_router_group_topk": experts.groups_kept if grouped else None,
        "moe_router_topk_scaling_factor": experts.scale if experts.scale != 1.0 else None,
        "moe_router_enable_expert_bias": experts.bias,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_router_dtype": "fp32",
        "moe_shared_expert_intermediate_size": experts.shared or None,
        "moe_shared_expert_gate": experts.shared_gate,
        "moe_layer_freq": [int(sparse) for sparse in decoder.sparse],
        "moe_grouped_gemm": has_transformer_engine(),
    }


def check_layout(decoder: Decoder, parallel: ParallelConfig) -> None:
    """Raises UserError, with the numbers, when the layout does not divide the model."""
    tensor, attention = parallel.tensor, decoder.attention
    share("attention heads", attention.heads, tensor, "parallel.tensor")
    if isinstance(attention, GroupedQuery) and attention.kv_heads % tensor:
        raise UserError(f"parallel.tensor {tensor} does not divide the model's {attention.kv_heads} key/value heads: choose a divisor of {attention.kv_heads}")
    if isinstance(attention, Latent) and not has_transformer_engine():
        share("key/value latent with its rotary part", attention.kv_rank + attention.rope, tensor, "parallel.tensor")
        share("query latent", attention.q_rank or tensor, tensor, "parallel.tensor")
    if not all(decoder.sparse) or not decoder.sparse:
        share("intermediate size", decoder.ffn, tensor, "parallel.tensor")
    if decoder.experts:
        _check_experts(decoder, parallel)
    elif parallel.expert > 1 or parallel.expert_tensor > 1:
        raise UserError(f"parallel.expert {parallel.expert} and expert_tensor {parallel.expert_tensor}: the model has no experts: use 1")


def _check_experts(decoder: Decoder, parallel: ParallelConfig) -> None:
    experts = decoder.experts
    assert experts is not None
    share("experts", experts.count, parallel.expert, "parallel.expert")
    share("experts' intermediate size", experts.ffn, parallel.expert_tensor, "parallel.expert_tensor")
    if experts.shared:
        share("shared expert's intermediate size", experts.shared, parallel.tensor, "parallel.tensor")
    if parallel.tensor > 1 and not parallel.sequence_parallel:
        raise UserError(f"parallel.tensor {parallel.tensor} with routed experts needs parallel.sequence_parallel: true")
    if experts.groups > 1 and experts.top_k // experts.groups_kept != 2:
        raise UserError(
            f"config.json: group-limited routing scores a group by its two best experts; Megatron-Core takes num_experts_per_tok / topk_group = "
            f"{experts.top_k} / {experts.groups_kept}, which must be 2"
        )
