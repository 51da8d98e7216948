"""The loss of one micro-batch, and what is measured on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vime.algos.importance import truncated_importance
from vime.algos.losses import kl_penalty, policy_loss, token_weights
from vime.config.tree import AlgoConfig
from vime.training.batch import MicroBatch
from vime.training.forward import Scores
from vime.training.metrics import Meter


@dataclass(frozen=True)
class Counts:
    """Of one optimizer step, over all ranks: what the token weights divide by."""

    tokens: int
    sequences: int
    ahead: tuple[int, ...] = ()  # tokens that draft layers of each depth predict


class PolicyObjective:
    """Clipped policy gradient, KL to the reference, entropy: Σ weights · (policy + kl_coef · KL − entropy_coef · H).

    `before`: scores of the weights that sampled (by micro-batch), where a pass of their own was made; else the current ones, detached, stand for them.
    With `algo.old_logprobs: engine` the engine's log-probs are the ratio's denominator instead, and no importance weight is due.
    """

    def __init__(self, algo: AlgoConfig, counts: Counts, before: Mapping[int, Scores], reference: Mapping[int, Scores], meter: Meter, first: bool):
        """`first`: no update has been made since the samples were drawn, so the current scores are those of the weights that sampled."""
        self.algo, self.counts, self.meter, self.first = algo, counts, meter, first
        self.before, self.reference = before, reference

    def __call__(self, micro: MicroBatch, logprobs_N: torch.Tensor, entropy_N: torch.Tensor) -> torch.Tensor:
        algo = self.algo
        sampled = self.before.get(id(micro)) or (Scores(micro, logprobs_N.detach(), entropy_N.detach()) if self.first else None)
        if sampled is not None:
            self.meter.sampled(micro, sampled)
        if algo.old_logprobs == "engine":
            old_N = micro.engine_logprobs_N
        else:
            assert sampled is not None  # the actor makes the pass whenever several updates share a rollout
            old_N = sampled.logprobs_N
        importance_N = None
        if algo.importance == "truncated":
            importance_N, capped_N = truncated_importance(old_N, micro.engine_logprobs_N, algo.importance_cap)
            self.meter.tokens(importance_mean=importance_N, importance_capped_frac=capped_N)
        mask_N = torch.ones_like(logprobs_N)
        loss_N, stats = policy_loss(logprobs_N, old_N, micro.advantages_N, mask_N, algo, importance_N)
        self.meter.tokens(clip_frac=stats["clipped_T"], ppo_kl=-stats["log_ratio_T"], entropy=entropy_N)
        if id(micro) in self.reference:
            kl_N = kl_penalty(logprobs_N, self.reference[id(micro)].logprobs_N, algo.kl_estimator)
            self.meter.tokens(kl_ref=kl_N)
            loss_N = loss_N + algo.kl_coef * kl_N
        if algo.entropy_coef:
            loss_N = loss_N - algo.entropy_coef * entropy_N
        return self._weigh(micro, loss_N)

    def _weigh(self, micro: MicroBatch, loss_N: torch.Tensor) -> torch.Tensor:
        loss = weigh(micro, loss_N, self.counts, self.algo.aggregation)
        self.meter.loss(loss)
        return loss


class SupervisedObjective:
    """Cross entropy of the tokens in the loss, each counting the same."""

    def __init__(self, counts: Counts, meter: Meter):
        self.counts, self.meter = counts, meter

    def __call__(self, micro: MicroBatch, logprobs_N: torch.Tensor, entropy_N: torch.Tensor) -> torch.Tensor:
        loss = weigh(micro, -logprobs_N, self.counts, "token")
        self.meter.loss(loss)
        self.meter.tokens(entropy=entropy_N)
        return loss


def weigh(micro: MicroBatch, loss_N: torch.Tensor, counts: Counts, aggregation: str) -> torch.Tensor:
    """Σ weights · loss of a micro-batch; over all micro-batches and ranks the weights add up to 1."""
    return (token_weights(micro.sequence_tokens_N, counts.tokens, counts.sequences, aggregation) * loss_N).sum()  # type: ignore[arg-type]
