"""Multi-token prediction in training: what the draft layers predict beside the model, and their loss.

A draft layer of depth k sees the hidden state of position t and the embeddings up to token t + k, and predicts token t + k + 1 (DeepSeek-V3, arXiv 2412.19437,
section 2.2; depth counts from 1). Its loss is the cross entropy of the tokens that are in the policy's loss, at the temperature they were sampled at, each
counting the same, averaged over depths and scaled by `train.mtp.loss_weight`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from vime.training.batch import MicroBatch
from vime.training.metrics import Meter

Gradient = Literal["mtp-only", "joint"]
WANTED = "_vime_mtp"  # mark of a pack's parameters: this pass wants the draft layers' logits


def install(model: torch.nn.Module, gradient: Gradient) -> None:
    """Make the decoder of `model` return (logits, draft logits of each depth) where a pass wants them, and plain logits elsewhere.

    Megatron's own postprocessing needs the labels of next tokens and adds a loss of its own. `gradient`: what the draft loss moves: the draft layers alone, or
    the trunk, the embedding and the head too.
    """
    for module in model.modules():
        if getattr(module, "mtp_process", False):
            gpt: Any = module
            gpt._postprocess = partial(_postprocess, gpt, gradient)
            for layer in gpt.mtp.layers:  # Megatron cannot recompute a draft layer over a pack
                layer.config = copy.copy(layer.config)
                layer.config.recompute_granularity = None


def _postprocess(gpt: Any, gradient: Gradient, hidden_states: torch.Tensor, packed_seq_params: Any = None, **given: Any) -> Any:
    """Megatron's `GPTModel._postprocess` without labels."""
    weight = gpt.shared_embedding_or_output_weight() if gpt.share_embeddings_and_output_weights else gpt.output_layer.weight
    logits = _logits(gpt, hidden_states, weight)
    if not getattr(packed_seq_params, WANTED, False):
        return logits
    embedding = gpt.embedding
    if gradient == "mtp-only":
        hidden_states, weight = hidden_states.detach().requires_grad_(), weight.detach()
        embedding = partial(_detached, gpt.embedding)
    kept = ("input_ids", "position_ids", "attention_mask", "rotary_pos_emb", "rotary_pos_cos", "rotary_pos_sin", "sequence_len_offset")
    hidden = gpt.mtp(
        hidden_states=hidden_states,
        packed_seq_params=packed_seq_params,
        embedding=embedding,
        **{key: given.get(key) for key in kept},
        **(given.get("extra_block_kwargs") or {}),
    )
    _, *depths = hidden.chunk(1 + len(gpt.mtp.layers), dim=0)
    return logits, tuple(_logits(gpt, depth, weight) for depth in depths)


def _logits(gpt: Any, hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return gpt.output_layer(hidden_states, weight=weight)[0].transpose(0, 1).contiguous()


def _detached(embedding: Callable[..., torch.Tensor], **given: Any) -> torch.Tensor:
    return embedding(**given).detach()


@dataclass(frozen=True)
class DraftLoss:
    """The draft layers' part of an update's loss. `tokens[k]`: how many tokens depth k + 1 predicts, over all micro-batches and ranks."""

    weight: float
    tokens: tuple[int, ...]
    meter: Meter

    def __call__(self, micro: MicroBatch, logprobs: Sequence[torch.Tensor]) -> torch.Tensor:
        """`logprobs[k]` float32[N]: of the tokens that depth k + 1 predicts in this micro-batch."""
        self.meter.tokens(mtp_loss=-torch.cat([values_N.detach() for values_N in logprobs]))
        parts = [-values_N.sum() / max(count, 1) for values_N, count in zip(logprobs, self.tokens, strict=True)]
        return self.weight * torch.stack(parts).sum() / len(parts)
