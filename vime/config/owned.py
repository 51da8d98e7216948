"""Fields of Megatron-Core that vime sets itself: block of `megatron:` -> field -> why it cannot be overridden, read as "megatron.optimizer.lr is train.lr".

vLLM's are in `vime/rollout/vllm_compat/base.py`, beside what they are set to.
"""

from __future__ import annotations

_LAYOUT = "is parallel.*'s"
_ARCHITECTURE = "comes from the model's config.json"
_INIT = "is set: weights are always loaded, or drawn from model.random_init_seed"
_DTYPE = "follows model.dtype"
_DROPOUT = "must stay 0: log-probs of the same weights have to be equal in every pass"
_GATHER = "would leave the weights ungathered when they are sent to the engines, right after the step"
_FSDP = "is not supported: weights are exported from ordinary parameters"

_PARALLEL_FIELDS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
)
_ARCHITECTURE_FIELDS = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "normalization",
    "qk_layernorm",
    "gated_linear_unit",
)

MEGATRON: dict[str, dict[str, str]] = {
    "model": {
        **dict.fromkeys(_PARALLEL_FIELDS, _LAYOUT),
        **dict.fromkeys(_ARCHITECTURE_FIELDS, _ARCHITECTURE),
        **dict.fromkeys(("params_dtype", "pipeline_dtype", "bf16", "fp16", "autocast_dtype", "enable_autocast"), _DTYPE),
        **dict.fromkeys(("hidden_dropout", "attention_dropout"), _DROPOUT),
        **dict.fromkeys(("mtp_num_layers", "mtp_loss_scaling_factor"), "is train.mtp's: the layers come from config.json, their loss is vime's own"),
        "virtual_pipeline_model_parallel_size": "is not supported: a pipeline stage holds one model chunk",
        "calculate_per_token_loss": "is set: vime weighs every token itself, so gradients are summed, not averaged",
        "variable_seq_lengths": "is set by the pipeline: packed micro-batches differ in length",
        **dict.fromkeys(("perform_initialization", "init_method", "output_layer_init_method", "embedding_init_method"), _INIT),
        "grad_scale_func": "is internal",
        "finalize_model_grads_func": "is internal",
    },
    "optimizer": {
        "lr": "is train.lr",
        "min_lr": "is train.min_lr_fraction",
        "weight_decay": "is train.weight_decay",
        "adam_beta1": "is train.beta1",
        "adam_beta2": "is train.beta2",
        "adam_eps": "is train.eps",
        "clip_grad": "is train.clip_grad",
        "use_distributed_optimizer": "is train.distributed_optimizer",
        "overlap_param_gather": _GATHER,
        "overlap_param_gather_with_optimizer_step": _GATHER,
        **dict.fromkeys(("bf16", "fp16", "params_dtype", "loss_scale"), _DTYPE),
    },
    "ddp": {
        "use_distributed_optimizer": "is train.distributed_optimizer",
        "average_in_collective": "is off: gradients are summed over data-parallel ranks, the loss carries the weights",
        "overlap_param_gather": _GATHER,
        "use_megatron_fsdp": _FSDP,
        "use_custom_fsdp": _FSDP,
    },
}
