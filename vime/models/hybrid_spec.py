"""The layers of a hybrid model (gated delta net and gated attention), of Megatron's local modules and vime's own.

Megatron-Core builds such layers with TransformerEngine alone. Where TransformerEngine is installed its core attention and its grouped experts are used inside
them; the other linears stay the local ones, because it has neither a packed gated delta net nor a norm that is zero-centred in one place and plain in another.
"""

from __future__ import annotations

from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.ssm.gated_delta_net import GatedDeltaNetSubmodules
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.multi_token_prediction import (
    MultiTokenPredictionBlock,
    MultiTokenPredictionBlockSubmodules,
    MultiTokenPredictionLayer,
    MultiTokenPredictionLayerSubmodules,
)
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from vime.models.base import Built
from vime.models.gated_delta_net import PackedGatedDeltaNet
from vime.models.norms import HeadNormWeight, ZeroCentredRMSNorm

BACKEND = LocalSpecProvider()


def block_spec(built: Built) -> TransformerBlockSubmodules:
    """The layers of this rank's pipeline stage."""
    first, pattern = built.layout.layer_offset, built.megatron.linear_attention_freq
    linear, full = _layer(built, _delta_net()), _layer(built, _attention(built))
    layers = [linear if pattern[index] else full for index in range(first, first + get_num_layers_to_build(built.megatron))]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=ZeroCentredRMSNorm)


def mtp_block_spec(built: Built) -> ModuleSpec | None:
    """The multi-token-prediction layer, of full attention, on the last stage."""
    if not (built.mtp and built.megatron.mtp_num_layers and built.last):
        return None
    layer = ModuleSpec(
        module=MultiTokenPredictionLayer,
        submodules=MultiTokenPredictionLayerSubmodules(
            enorm=ZeroCentredRMSNorm,
            hnorm=ZeroCentredRMSNorm,
            eh_proj=BACKEND.column_parallel_linear(),
            transformer_layer=_layer(built, _attention(built)),
            layer_norm=ZeroCentredRMSNorm,
        ),
    )
    layers = [layer] * built.megatron.mtp_num_layers
    return ModuleSpec(module=MultiTokenPredictionBlock, submodules=MultiTokenPredictionBlockSubmodules(layer_specs=layers))


def _layer(built: Built, mixer: ModuleSpec) -> ModuleSpec:
    experts = built.megatron.num_moe_experts
    backend = _transformer_engine() if experts and built.core_attention is None else BACKEND  # its grouped experts need no norm of their own
    mlp = get_mlp_module_spec_for_backend(backend, num_experts=experts, moe_grouped_gemm=bool(experts) and built.megatron.moe_grouped_gemm)
    parts = TransformerLayerSubmodules(
        input_layernorm=ZeroCentredRMSNorm,
        self_attention=mixer,
        self_attn_bda=get_bias_dropout_add,
        pre_mlp_layernorm=ZeroCentredRMSNorm,
        mlp=mlp,
        mlp_bda=get_bias_dropout_add,
    )
    return ModuleSpec(module=TransformerLayer, submodules=parts)


def _delta_net() -> ModuleSpec:
    return ModuleSpec(
        module=PackedGatedDeltaNet,
        submodules=GatedDeltaNetSubmodules(in_proj=BACKEND.column_parallel_linear(), out_norm=HeadNormWeight, out_proj=BACKEND.row_parallel_linear()),
    )


def _attention(built: Built) -> ModuleSpec:
    return ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=BACKEND.column_parallel_linear(),
            core_attention=built.core_attention or _transformer_engine().core_attention(),
            linear_proj=BACKEND.row_parallel_linear(),
            q_layernorm=ZeroCentredRMSNorm,
            k_layernorm=ZeroCentredRMSNorm,
        ),
    )


def _transformer_engine() -> Any:
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

    return TESpecProvider()
