"""Mends of vLLM's CPU build: three for wrong results, one for a refusal. `tests/platforms/test_cpu_vllm.py` fails when one is no longer needed."""

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


def route_by_sigmoid() -> None:
    """Sigmoid routing without groups (MiniMax-M2): the CPU router asserts that it is softmax. It is the same as one group of which one is kept, which the
    router does know."""
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter, _grouped_topk

    original = CPURouter._compute_routing
    if getattr(original, "routes_by_sigmoid", False):
        return

    def compute(self: Any, hidden_states: Any, router_logits: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if self.scoring_func != "sigmoid" or self.use_grouped_topk or self.custom_routing_function is not None:
            return original(self, hidden_states, router_logits, *args, **kwargs)
        bias = self.e_score_correction_bias
        return _grouped_topk(router_logits, self.top_k, self.renormalize, 1, 1, "sigmoid", self.routed_scaling_factor, bias)

    compute.routes_by_sigmoid = True  # type: ignore[attr-defined]
    CPURouter._compute_routing = compute


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


def expand_by_requests() -> None:
    """Temperature, top-k and top-p of each drafted token in speculative decoding: vLLM's CPU kernel writes a float result to a copy that nobody reads, so that
    tokens are sampled at whatever temperature stood in fresh memory."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expanded


def expanded(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """`x` [requests] → [num_tokens], each value as often as its request has tokens by `cu_num_tokens`; `replace_from` becomes `replace_to`."""
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return torch.repeat_interleave(values, counts.long(), output_size=num_tokens)
