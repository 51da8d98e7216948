"""What Megatron-Core 0.16 needs to run without CUDA, TransformerEngine or Apex.

`apply()` is called once, by `CpuPlatform.bootstrap_megatron`, before a model is built; it imports the Megatron modules it substitutes in. Calling it again,
after more of Megatron was imported, is harmless. Every substitution is seen by modules named `megatron.*` alone: they get a proxy of `torch` whose CUDA
device is the CPU, and the few changed tensor methods look at their caller. Hugging Face, vLLM and vime itself keep the real torch. On a machine with a CUDA
or NPU device nothing is changed, and importing this module changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")

# Everything a training process uses: imported before the proxy is put in, so that each of them sees it.
MODULES = (
    "megatron.core.dist_checkpointing",
    "megatron.core.dist_checkpointing.strategies.filesystem_async",
    "megatron.core.dist_checkpointing.strategies.fully_parallel",
    "megatron.core.dist_checkpointing.strategies.state_dict_saver",
    "megatron.core.dist_checkpointing.strategies.torch",
    "megatron.core.distributed",
    "megatron.core.models.common.embeddings.rope_utils",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
    "megatron.core.ssm.gated_delta_net",
    "megatron.core.tensor_parallel.random",
    "megatron.core.transformer.moe.moe_utils",
    "megatron.core.transformer.moe.token_dispatcher",
    "megatron.core.transformer.multi_latent_attention",
    "megatron.core.transformer.torch_norm",
)


def apply() -> None:
    """Make Megatron-Core usable on this process' CPU. Idempotent; does nothing where an accelerator is present."""
    if accelerator_present():
        return
    for name in MODULES:
        importlib.import_module(name)
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.") and getattr(module, "torch", None) is torch:
            module.torch = TORCH  # type: ignore[attr-defined]
    _tensor_methods()
    _random_state()
    _norm()
    _moe()
    _latent_attention()
    _optimizer_state()
    _rope()


def accelerator_present() -> bool:
    """Whether torch sees a CUDA or an NPU device."""
    npu = getattr(torch, "npu", None)
    return torch.cuda.is_available() or (npu is not None and npu.is_available())


# ---- the proxy of torch ------------------------------------------------------------------------------------------------------------------------


class _Proxy(types.ModuleType):
    """A module that answers with its own attributes first, then with those of the module it stands for."""

    def __init__(self, base: types.ModuleType, own: dict[str, Any]):
        super().__init__(base.__name__)
        self.__dict__.update(own)
        self.__dict__["_base"] = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_base"], name)


class _Event:
    """Events order streams; work on a CPU is done when the call returns."""

    def __init__(self, *args: Any, **kwargs: Any): ...
    def record(self, *args: Any) -> None: ...
    def wait(self, *args: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


class _Stream:
    """The one stream a CPU has."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any): ...
    def wait_stream(self, *args: Any) -> None: ...
    def wait_event(self, *args: Any) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _DeviceMeta(type):
    def __instancecheck__(cls, instance: Any) -> bool:  # isinstance(x, torch.device) keeps its meaning in Megatron's modules
        return isinstance(instance, torch.device)


class _Device(metaclass=_DeviceMeta):
    """torch.device, but a request for CUDA gives the CPU."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return CPU if args and _is_cuda(args[0]) else torch.device(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    return device.type == "cuda" if isinstance(device, torch.device) else isinstance(device, str) and device.startswith("cuda")


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    """A tensor factory that takes device="cuda" as the CPU and does not pin (pinning needs a CUDA driver)."""

    @functools.wraps(factory)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return call


_STREAM = _Stream()
_CUDA = _Proxy(
    torch.cuda,
    {
        "current_device": lambda: CPU,
        "device_count": lambda: 1,
        "set_device": _nothing,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "current_stream": lambda *args, **kwargs: _STREAM,
        "default_stream": lambda *args, **kwargs: _STREAM,
        "stream": lambda stream=None: contextlib.nullcontext(),
        "Stream": _Stream,
        "Event": _Event,
        "get_rng_state": lambda *args, **kwargs: torch.get_rng_state(),
        "set_rng_state": lambda state, *args, **kwargs: torch.set_rng_state(state),
        "manual_seed": lambda seed: torch.default_generator.manual_seed(int(seed)),
        "manual_seed_all": _nothing,
        "memory_allocated": lambda *args, **kwargs: 0,
        "max_memory_allocated": lambda *args, **kwargs: 0,
        "memory_reserved": lambda *args, **kwargs: 0,
        "nvtx": types.SimpleNamespace(range_push=_nothing, range_pop=_nothing, range=lambda *args, **kwargs: contextlib.nullcontext()),
    },
)
_FACTORIES = [
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
]
TORCH = _Proxy(torch, {**{name: _on_cpu(getattr(torch, name)) for name in _FACTORIES}, "cuda": _CUDA, "device": _Device})


# ---- tensor methods ----------------------------------------------------------------------------------------------------------------------------


def _from_megatron() -> bool:
    """Whether the caller of the method that asks is a Megatron module."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("megatron.")


def _tensor_methods() -> None:
    """`.cuda()` is the identity and `.type()` says "torch.cuda.…" for Megatron's code: its optimizers sort parameters by names such as
    "torch.cuda.FloatTensor"."""
    if hasattr(torch.Tensor.type, "_vime_cpu"):
        return
    tensor_cuda, module_cuda, tensor_type = torch.Tensor.cuda, torch.nn.Module.cuda, torch.Tensor.type

    def cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self if _from_megatron() else tensor_cuda(self, *args, **kwargs)

    def cuda_of_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        return self if _from_megatron() else module_cuda(self, *args, **kwargs)

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        out = tensor_type(self, *args, **kwargs)
        named = isinstance(out, str) and self.device.type == "cpu"
        return out.replace("torch.", "torch.cuda.", 1) if named and _from_megatron() else out

    type_._vime_cpu = True  # type: ignore[attr-defined]
    torch.Tensor.cuda, torch.nn.Module.cuda, torch.Tensor.type = cuda, cuda_of_module, type_  # type: ignore[method-assign, assignment]


def _random_state() -> None:
    """Megatron's random-state tracker keeps a CUDA generator a tensor-parallel region; here the CPU's own generator takes its place."""
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


# ---- holes of Megatron-Core without TransformerEngine and Apex -----------------------------------------------------------------------------------


def _norm() -> None:
    """The torch fallback of the norms refuses sequence parallelism; all it needs is the mark by which Megatron sums their gradients over tensor-parallel
    ranks."""
    wrapped = importlib.import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm
    if getattr(wrapped, "_vime_cpu", False):
        return

    def new(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> torch.nn.Module:
        if config.layernorm_zero_centered_gamma or config.normalization not in ("RMSNorm", "LayerNorm"):
            raise NotImplementedError(f"normalization {config.normalization} (zero-centred: {config.layernorm_zero_centered_gamma}) needs TransformerEngine")
        norm = (torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm)(hidden_size, eps=eps)
        for parameter in norm.parameters():
            setattr(parameter, "sequence_parallel", config.sequence_parallel)  # noqa: B010  (an attribute of Megatron's, unknown to torch's types)
        return norm

    wrapped.__new__, wrapped._vime_cpu = staticmethod(new), True


def _moe() -> None:
    """`te_general_gemm` is used without being defined; and all-to-all split sizes leave the device as numpy only when they were on CUDA."""
    utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    dispatcher: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    if not hasattr(utils, "te_general_gemm"):
        utils.te_general_gemm = None
    move = utils.maybe_move_tensor_to_cpu
    if hasattr(move, "_vime_cpu"):
        return

    def move_or_numpy(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        on_cpu = torch.is_tensor(tensor) and tensor.device.type == "cpu"
        return tensor.numpy() if as_numpy and on_cpu else move(tensor, as_numpy, record_stream)

    move_or_numpy._vime_cpu = True  # type: ignore[attr-defined]
    utils.maybe_move_tensor_to_cpu = move_or_numpy
    dispatcher.maybe_move_tensor_to_cpu = move_or_numpy


def _latent_attention() -> None:
    """Megatron's wrappers of TransformerEngine import without it, as empty names: this module takes their import for its presence and asks for their types."""
    module: Any = importlib.import_module("megatron.core.transformer.multi_latent_attention")
    if importlib.util.find_spec("transformer_engine") is None:
        module.HAVE_TE = False


def _optimizer_state() -> None:
    """torch's Adam keeps a step count a parameter; the checkpoint holds one for all, which `load_state_dict` restores: the setter must not look for it among
    the tensors."""
    optimizer = importlib.import_module("megatron.core.optimizer.distrib_optimizer").DistributedOptimizer

    def set_states(self: Any, model_param: Any, tensors: dict[str, torch.Tensor]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        main_param = self.optimizer.param_groups[group]["params"][order]
        for key, value in {"param": main_param, **self.optimizer.state[main_param]}.items():
            if key != "step":
                value.copy_(tensors[key])

    optimizer._set_main_param_and_optimizer_states = set_states


# ---- rotary embedding of packed sequences ----------------------------------------------------------------------------------------------------------


def _rope() -> None:
    """Megatron splits a packed micro-batch into its sequences in Python, in every layer, for queries and for keys: slow at hundreds of short sequences.
    `rope_thd` is its vectorised equal."""
    utils: Any = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    if hasattr(utils._apply_rotary_pos_emb_thd, "_vime_cpu"):
        return
    original = utils._apply_rotary_pos_emb_thd

    @functools.wraps(original)
    def thd(t, cu_seqlens, freqs, rotary_interleaved=False, multi_latent_attention=False, mscale=1.0, cp_group=None):  # type: ignore[no-untyped-def]
        if rotary_interleaved or (cp_group is not None and cp_group.size() > 1):
            return original(t, cu_seqlens, freqs, rotary_interleaved, multi_latent_attention, mscale, cp_group)
        return rope_thd(t, cu_seqlens, freqs, mscale, pairs=multi_latent_attention)

    thd._vime_cpu = True  # type: ignore[attr-defined]
    utils._apply_rotary_pos_emb_thd = thd


def rope_thd(t_THD: torch.Tensor, cu_seqlens: torch.Tensor, freqs: torch.Tensor, mscale: float = 1.0, *, pairs: bool = False) -> torch.Tensor:
    """Rotary embedding of packed sequences, each counted from position 0.

    `t_THD` [T, heads, D]; `cu_seqlens` int32[B+1]; `freqs` [longest, 1, 1, R] with R ≤ D, its two halves equal; or [T, 1, 1, R], a row a token (M-RoPE, or
    a pack of one sequence, where both mean the same). `pairs`: neighbours turn together, and come out as two halves (latent attention). Returns
    [T, heads, D], bit for bit what Megatron's per-sequence loop gives. cos and sin of each position are kept on `cu_seqlens`, since all layers of a
    micro-batch use the same.
    """
    width = freqs.shape[-1]
    cos, sin = _positions(cu_seqlens, freqs, mscale, t_THD.dtype)
    turning = t_THD[..., :width]
    if pairs:
        turning = torch.cat((turning[..., 0::2], turning[..., 1::2]), dim=-1)
    turned = _Rotate.apply(turning, cos, sin)
    return turned if width == t_THD.shape[-1] else torch.cat((turned, t_THD[..., width:]), dim=-1)


def _positions(cu_seqlens: torch.Tensor, freqs: torch.Tensor, mscale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    key = (id(freqs), mscale, dtype)
    kept = getattr(cu_seqlens, "_vime_rope", None)
    if kept is None or kept[0] != key:
        tables = [(table[:, 0] * mscale).to(dtype) for table in (torch.cos(freqs), torch.sin(freqs))]
        if len(freqs) != cu_seqlens[-1]:
            lengths = cu_seqlens[1:] - cu_seqlens[:-1]
            positions_T = torch.arange(int(cu_seqlens[-1])) - torch.repeat_interleave(cu_seqlens[:-1], lengths)
            tables = [table[positions_T] for table in tables]
        kept = (key, freqs, *tables)  # freqs is held so that its id stays its own
        cu_seqlens._vime_rope = kept  # type: ignore[attr-defined]
    return kept[2], kept[3]


class _Rotate(torch.autograd.Function):
    """y = x·cos + rotate_half(x)·sin; the gradient is the rotation back, with no graph of slices and concatenations kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        out = x * cos
        half = x.shape[-1] // 2
        out[..., :half] -= x[..., half:] * sin[..., :half]  # not addcmul_: its fused rounding would differ from Megatron's
        out[..., half:] += x[..., :half] * sin[..., half:]
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        out = grad * cos
        half = grad.shape[-1] // 2
        out[..., :half] += grad[..., half:] * sin[..., half:]
        out[..., half:] -= grad[..., :half] * sin[..., :half]
        return out, None, None
