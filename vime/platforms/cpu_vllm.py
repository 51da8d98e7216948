"""Three mends for wrong results of vLLM's CPU build. `tests/platforms/test_cpu_vllm.py` fails when the installed vLLM no longer needs one."""

from __future__ import annotations

from typing import Any


def rotate_every_head() -> None:
    """Rotary embedding on `[T, H, D]` queries: the CPU kernel reads the last dimension as heads × head size, so it would rotate head 0 alone (MLA models)."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    original = RotaryEmbedding.forward_cpu
    if getattr(original, "rotates_every_head", False):
        return

    def forward_cpu(self: Any, positions: Any, query: Any, key: Any = None, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        rotated_query, rotated_key = original(self, positions, flat_heads(query), flat_heads(key), *args, **kwargs)
        return rotated_query.view(query.shape), None if rotated_key is None else rotated_key.view(key.shape)

    forward_cpu.rotates_every_head = True  # type: ignore[attr-defined]
    RotaryEmbedding.forward_cpu = forward_cpu


def flat_heads(tensor: Any) -> Any:
    """`[T, H, D]` as a contiguous `[T, H·D]`; anything else unchanged."""
    if tensor is None or tensor.dim() != 3:
        return tensor
    return tensor.reshape(tensor.shape[0], -1).contiguous()


def forget_moe_prepack(model: Any) -> None:
    """Make MoE layers prepack again after a weight reload: vLLM skips the CPU prepack where a kernel already exists and then computes garbage in silence."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if type(method).__name__ == "UnquantizedFusedMoEMethod":
            method.moe_kernel = None


def repack_tied_heads(model: Any) -> None:
    """Pack a tied output head again after a weight reload: it has no weights of its own to load, so vLLM keeps the packed copy of the old embedding."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)}
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and id(module.weight) in embeddings:
            module.quant_method.process_weights_after_loading(module)
