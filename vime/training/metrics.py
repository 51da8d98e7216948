"""Numbers of a training step, collected token by token and reduced exactly over data-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from vime.algos.sampler_check import MomentSums
from vime.training.batch import MicroBatch

if TYPE_CHECKING:
    from vime.training.forward import Scores


class Meter:
    """Collects on every rank of the last pipeline stage. Sums are float64 and counts exact, so the result does not depend on packing or layout beyond
    rounding."""

    def __init__(self) -> None:
        self._tokens: dict[str, list[torch.Tensor]] = {}
        self._losses: list[torch.Tensor] = []
        self._gaps: list[torch.Tensor] = []
        self._moments = MomentSums()
        self.updates = 0
        self.grad_norms: list[float] = []

    def tokens(self, **values_N: torch.Tensor) -> None:
        """Per-token values whose mean over all tokens becomes `train/<name>`."""
        for name, values in values_N.items():
            self._tokens.setdefault(name, []).append(values.detach())

    def loss(self, part: torch.Tensor) -> None:
        """A micro-batch's part of an update's loss."""
        self._losses.append(part.detach())

    def sampled(self, micro: MicroBatch, scores: Scores) -> None:
        """Log-probs and entropies of the weights that sampled, against the engine's log-probs."""
        self._gaps.append((scores.logprobs_N - micro.engine_logprobs_N).abs())
        self._moments = self._moments + MomentSums.of(-scores.logprobs_N, scores.entropy_N, torch.ones_like(scores.logprobs_N))

    def update(self, grad_norm: float) -> None:
        """One optimizer step."""
        self.updates += 1
        self.grad_norms.append(grad_norm)

    def reduce(self, group: Any, *, sampler_check: bool) -> dict[str, float]:
        """`train/…` and `rollout/nll_minus_entropy_z` over the data-parallel `group`. A collective of the group; every member gets the same numbers."""
        names = sorted(self._tokens)
        columns = [torch.cat(self._tokens[name]).double() for name in names]
        loss = torch.stack(self._losses).double().sum() if self._losses else torch.zeros((), dtype=torch.float64)
        device = loss.device
        moments = torch.tensor([self._moments.n, self._moments.total, self._moments.squares], dtype=torch.float64, device=device)
        sums = torch.cat([*(torch.stack([torch.tensor(float(len(c)), device=device, dtype=torch.float64), c.sum()]) for c in columns), loss[None], moments])
        gaps = torch.cat(self._gaps).float().cpu().numpy() if self._gaps else np.zeros(0, np.float32)
        if dist.get_world_size(group) > 1:
            dist.all_reduce(sums, group=group)
            parts: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(parts, gaps, group=group)
            gaps = np.concatenate(parts)
        values = sums.tolist()
        out = {f"train/{name}": values[2 * i + 1] / values[2 * i] for i, name in enumerate(names) if values[2 * i] > 0}
        out["train/loss"] = values[2 * len(names)] / max(self.updates, 1)
        out["train/grad_norm"] = float(np.mean(self.grad_norms))
        if len(gaps):
            out |= {
                "train/logprob_gap_mean": float(gaps.mean(dtype=np.float64)),
                "train/logprob_gap_p99": float(np.quantile(gaps, 0.99)),
                "train/logprob_gap_max": float(gaps.max()),
            }
            if sampler_check:
                out["rollout/nll_minus_entropy_z"] = MomentSums(*values[-3:]).z()
        return out
