"""A trainer rank's memory while a colocated engine works: what is parked on the host, and when it must be back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch

from vime.errors import RunError
from vime.platforms.base import Platform
from vime.platforms.memory import Parked, unique_storages
from vime.training.model import Trained

What = Literal["optimizer", "all"]


class Residency:
    """Parks optimizer state and gradients (`optimizer`), or those and the weights (`all`). Gradients are not kept: they are made anew every step."""

    def __init__(self, trained: Trained, platform: Platform, others: tuple[torch.nn.Module, ...] = ()):
        self.platform = platform
        self._trained, self._others = trained, others
        self._find()

    def _find(self) -> None:
        """What there is to park now."""
        trained, pin = self._trained, self.platform.device_type != "cpu"
        weights = [tensor for module in (trained.model, *self._others) for tensor in (*module.parameters(), *module.buffers())]
        own = unique_storages(weights)
        state = [tensor for tensor in optimizer_tensors(trained.optimizer) if tensor.untyped_storage()._cdata not in own]
        self._weights = Parked(weights, pin=pin)
        self._optimizer = Parked(state, discard=gradient_buffers(trained.ddp), pin=pin)

    def replaced(self) -> None:
        """A checkpoint was loaded: the optimizer has other tensors than before, and those are to be parked from now on."""
        self._find()

    def park(self, what: What) -> int:
        """Give device memory back: exactly `what` is parked after it (weights that were come back for `optimizer`). Returns the bytes that are parked now."""
        if what not in ("optimizer", "all"):
            raise ValueError(f"park: {what!r} is neither 'optimizer' nor 'all'")
        self.platform.synchronize()
        self._optimizer.park()
        if what == "all":
            self._weights.park()
        else:
            self._weights.restore()
        self.platform.empty_cache()
        return sum(part.nbytes for part in (self._optimizer, self._weights) if part.parked)

    def restore(self) -> None:
        """Everything is where it was."""
        self._weights.restore()
        self._optimizer.restore()
        self.platform.synchronize()

    def require(self, what: What, stage: str) -> None:
        """Raises `RunError` when the weights (or, for `all`, anything) are parked: whoever reads them would read freed memory."""
        if self._weights.parked or (what == "all" and self._optimizer.parked):
            raise RunError(stage, "the trainer's memory is parked for a colocated engine: it must be restored first")


def gradient_buffers(ddp: Any) -> list[torch.Tensor]:
    return [buffer.grad_data for buffer in [*ddp.buffers, *ddp.expert_parallel_buffers] if buffer.grad_data is not None]


def optimizer_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """Master weights and moments of Megatron's optimizer, or of each it chains."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = part.optimizer
        if inner is None:  # a rank without parameters of this kind
            continue
        for group in inner.param_groups:
            yield from (tensor for tensor in group["params"] if isinstance(tensor, torch.Tensor))
        for state in inner.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor) and value.dim())
