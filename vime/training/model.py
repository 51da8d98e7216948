"""Megatron's model, data-parallel wrapper and optimizer from the run's configuration."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vime.config.owned import MEGATRON as OWNED
from vime.config.tree import Config, TrainConfig
from vime.errors import UserError
from vime.models.base import Built, Family, HfConfig, Layout, ModelShape, WeightTable, setting
from vime.models.decoder import has_transformer_engine
from vime.models.hf_io import load_hf, read_config
from vime.models.random_init import random_init
from vime.models.registry import family_for
from vime.training.mtp import install


@dataclass
class Trained:
    """The model of one rank and everything around it."""

    family: Family
    hf_config: dict[str, Any]
    shape: ModelShape
    table: WeightTable
    layout: Layout
    config: Any  # megatron's TransformerConfig
    model: torch.nn.Module  # the bare GPTModel
    mtp: int = 0  # draft layers
    ddp: Any = None
    optimizer: Any = None


def overrides(config: Config, block: str) -> dict[str, Any]:
    """`config.megatron[block]` with dtypes resolved. Raises UserError on a field vime owns, an unknown one (with the nearest name), or an unknown block."""
    for name in config.megatron:
        if name not in OWNED:
            raise UserError(f"megatron.{name}: there is no such block: use one of {', '.join(OWNED)}")
    given = dict(config.megatron.get(block) or {})
    known = _fields(block)
    for key, value in given.items():
        if key in OWNED[block]:
            raise UserError(f"megatron.{block}.{key} {OWNED[block][key]}: take it out")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise UserError(f"megatron.{block}.{key}: Megatron-Core's {known[''].__name__} has no such field{f'; did you mean {near[0]}?' if near else ''}")
        if "dtype" in key and isinstance(value, str):
            given[key] = torch_dtype(value, f"megatron.{block}.{key}")
    return given


def _fields(block: str) -> dict[str, Any]:
    """Field names of the block's Megatron class; the class itself under ""."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    cls = {"model": TransformerConfig, "optimizer": OptimizerConfig, "ddp": DistributedDataParallelConfig}[block]
    return {field.name: field for field in dataclasses.fields(cls)} | {"": cls}


def torch_dtype(name: str, key: str = "model.dtype") -> torch.dtype:
    """A dtype by its name: "bfloat16", "bf16", "torch.float32", …. Raises UserError naming `key`."""
    full = {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"}.get(name, name.removeprefix("torch."))
    dtype = getattr(torch, full, None)
    if not isinstance(dtype, torch.dtype):
        raise UserError(f"{key}: {name!r} is no torch dtype")
    return dtype


def transformer_config(config: Config, family: Family, hf_config: Mapping[str, Any], device_type: str, *, mtp: bool = False) -> Any:
    """The TransformerConfig of a run. Raises UserError for a layout or a setting that cannot be had."""
    parallel = config.parallel
    _check_layout(config, family, hf_config)
    dtype = torch_dtype(config.model.dtype)
    common: dict[str, Any] = {
        "tensor_model_parallel_size": parallel.tensor,
        "pipeline_model_parallel_size": parallel.pipeline,
        "context_parallel_size": parallel.context,
        "expert_model_parallel_size": parallel.expert,
        "expert_tensor_parallel_size": parallel.expert_tensor,
        "sequence_parallel": parallel.sequence_parallel,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "calculate_per_token_loss": True,
        # Megatron marks its split parameters while it initialises them (the gradient norm depends on the marks): let it, with initialisers that do nothing
        "perform_initialization": True,
        **dict.fromkeys(("init_method", "output_layer_init_method", "embedding_init_method"), _leave),
        "variable_seq_lengths": parallel.pipeline > 1,
        "moe_token_dispatcher_type": "alltoall",  # the default refuses variable lengths, in a model without experts too
        "use_cpu_initialization": device_type == "cpu",
        "attention_softmax_in_fp32": True,
        "batch_p2p_comm": device_type != "cpu",  # gloo has no batched send and receive
        "deallocate_pipeline_outputs": True,
    }
    if not has_transformer_engine():
        # fused kernels belong to TransformerEngine, Apex or torch.compile
        common |= dict.fromkeys(
            (
                "gradient_accumulation_fusion",
                "bias_activation_fusion",
                "bias_dropout_fusion",
                "masked_softmax_fusion",
                "apply_rope_fusion",
                "persist_layer_norm",
            ),
            False,
        )
    if config.train.recompute == "full":
        common |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return family.megatron_config(hf_config, parallel, {**common, **overrides(config, "model")}, mtp=mtp)


def _leave(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _check_layout(config: Config, family: Family, hf_config: Mapping[str, Any]) -> None:
    parallel, given = config.parallel, config.megatron.get("model") or {}
    if config.model.dtype == "float16":
        raise UserError("model.dtype: float16 needs loss scaling, which vime does not do: use bfloat16 or float32")
    layers = int(setting(hf_config, "num_hidden_layers", 0))
    uneven = (
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "pipeline_model_parallel_layout",
        "account_for_embedding_in_pipeline_split",
    )
    if layers % parallel.pipeline and not any(given.get(key) for key in uneven):
        raise UserError(
            f"parallel.pipeline {parallel.pipeline} does not divide the model's {layers} layers: choose a divisor of {layers}, "
            "or give an uneven split, e.g. megatron.model.num_layers_in_first_pipeline_stage"
        )


def build(config: Config, platform: Any, layout: Layout, device: torch.device) -> Trained:
    """Model with its weights, data-parallel wrapper and optimizer. torch.distributed and Megatron's parallel state are up."""
    trained = unloaded(config, platform, layout, device, mtp=wants_mtp(config))
    load_weights(trained.model, config, trained.table, trained.layout)
    if config.model.freeze_vision:
        _freeze_vision(trained)
    if trained.mtp and not config.train.mtp.loss_weight:
        _freeze_draft(trained.model)
    ddp = _wrap(config, trained.config, trained.model)
    return dataclasses.replace(trained, ddp=ddp, optimizer=_optimizer(config, ddp))


def wants_mtp(config: Config) -> bool:
    """Whether a run needs the model's draft layers: it trains them, or its engines speculate with them."""
    return config.train.mtp.loss_weight > 0 or config.rollout.speculative.method == "mtp"


def unloaded(config: Config, platform: Any, layout: Layout, device: torch.device, *, mtp: bool) -> Trained:
    """The model alone, its weights not yet set: without wrapper and optimizer. `mtp`: with its draft layers."""
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    hf_config = read_config(config.model.path)
    family = family_for(hf_config, str(Path(config.model.path) / "config.json"))
    depths = family.mtp_layers(hf_config) if mtp else 0
    if mtp and not depths:
        raise UserError(
            f"{config.model.path}: this {family.title} model has no multi-token-prediction layers: take out train.mtp.loss_weight and rollout.speculative"
        )
    table, shape = family.weight_table(hf_config, mtp=mtp), family.shape(hf_config)
    megatron = transformer_config(config, family, hf_config, platform.device_type, mtp=mtp)
    layout = dataclasses.replace(layout, layer_offset=get_transformer_layer_offset(megatron))
    model = bare_model(family, hf_config, megatron, shape, layout, device, mtp=mtp)
    _check_marks(model, table, layout)
    _mark_experts(model)
    install(model, config.train.mtp.gradient)
    return Trained(family, hf_config, shape, table, layout, megatron, model, depths)


def _freeze_draft(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if "mtp" in name.split("."):
            parameter.requires_grad_(False)


def _freeze_vision(trained: Trained) -> None:
    if not trained.hf_config.get("vision_config"):
        raise UserError(f"model.freeze_vision: this {trained.family.title} model has no vision tower: take it out")
    if hasattr(trained.model, "vision"):  # only the first pipeline stage has it
        trained.model.vision.requires_grad_(False)


def bare_model(
    family: Family, hf_config: HfConfig, megatron: Any, shape: ModelShape, layout: Layout, device: torch.device, *, mtp: bool = False
) -> torch.nn.Module:
    """This rank's part of the model, its weights not yet set. Parameters have the run's dtype; buffers keep theirs (a routing bias is float32)."""
    from vime.training.attention import PackedAttention

    core = None if has_transformer_engine() else PackedAttention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = family.build(Built(hf_config, megatron, shape, layout, core, mtp))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device=device, dtype=megatron.params_dtype)
    return model.to(device=device)


def _check_marks(model: torch.nn.Module, table: WeightTable, layout: Layout) -> None:
    """Megatron and the weight table agree on which parameters are split over tensor-parallel ranks: a split one counted as a copy would be left out of the
    gradient norm."""
    for name, parameter in model.named_parameters():
        pieces = table.pieces(name, layout)
        split = any(piece.split for piece in pieces)
        if layout.tp_size > 1 and pieces and split != bool(getattr(parameter, "tensor_model_parallel", False)):
            raise AssertionError(f"{name}: split over tensor-parallel ranks by the weight table: {split}, by Megatron: {not split}")


def _mark_experts(model: torch.nn.Module) -> None:
    """Gradients of experts are summed over the ranks that hold the same ones, and they have an optimizer of their own, in every layout. Megatron marks them
    only where they are spread (ep > 1); elsewhere it sums over the dense parameters' ranks, too few where the experts' tensor parallelism is another, and a
    checkpoint's optimizer state would have another form."""
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            parameter.allreduce = False  # type: ignore[attr-defined]


def load_weights(model: torch.nn.Module, config: Config, table: WeightTable, layout: Layout) -> None:
    """Fill the model from model.path, or from model.random_init_seed. (`load: torch-dist` is read by the actor, when the optimizer stands.)"""
    if config.model.random_init_seed is not None:
        random_init(model, table, layout, config.model.random_init_seed, std=float(setting(read_config(config.model.path), "initializer_range", 0.02)))
    elif config.model.load == "hf":
        load_hf(model, config.model.path, table, layout)


def _wrap(config: Config, megatron: Any, model: torch.nn.Module) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    options = {"grad_reduce_in_fp32": True, "use_distributed_optimizer": config.train.distributed_optimizer, **overrides(config, "ddp")}
    ddp = DistributedDataParallel(megatron, DistributedDataParallelConfig(**options), model)
    if options.get("overlap_grad_reduce"):
        megatron.no_sync_func = ddp.no_sync
    return ddp


def _optimizer(config: Config, ddp: Any) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    train = config.train
    given = overrides(config, "optimizer")
    if train.distributed_optimizer and given.get("optimizer", "adam") != "adam":
        raise UserError(f"megatron.optimizer.optimizer {given['optimizer']!r} cannot be distributed in Megatron-Core: set train.distributed_optimizer: false")
    options = OptimizerConfig(
        **{
            "lr": train.lr,
            "weight_decay": train.weight_decay,
            "adam_beta1": train.beta1,
            "adam_beta2": train.beta2,
            "adam_eps": train.eps,
            "clip_grad": train.clip_grad,
            "bf16": config.model.dtype == "bfloat16",
            "params_dtype": torch_dtype(config.model.dtype),
            "use_distributed_optimizer": train.distributed_optimizer,
            **given,
        }
    )
    return get_megatron_optimizer(options, [ddp], use_gloo_process_groups=False)


def set_rate(optimizer: Any, lr: float, train: TrainConfig) -> None:
    """Learning rate and weight decay of the next update; biases and norms take none (Megatron's `wd_mult`)."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_mult", 1.0)
        group["weight_decay"] = train.weight_decay * group.get("wd_mult", 1.0)
