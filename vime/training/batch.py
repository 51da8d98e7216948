"""The train batch: what the driver sends to every trainer rank, and the packed micro-batches a rank makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vime.training.context import local_rows, pack_multiple, padded
from vime.training.images import ImageBatch

if TYPE_CHECKING:  # the driver makes train batches and needs no torch
    import torch

    from vime.models.vision import Images


PAD_ID = 0  # what stands in padding: nothing reads it


@dataclass(frozen=True)
class TrainBatch:
    """Samples end to end, flat arrays with offsets; the value at position t is about token t.

    ids int64[ΣL]; offsets int64[B+1], sample b is ids[offsets[b]:offsets[b+1]]; loss_mask uint8[ΣL], 1 where the token is in the loss (never at a sample's
    first token); engine_logprobs float32[ΣL], natural log at `temperature`, 0 where the mask is 0; advantages float32[ΣL]; group_ids int64[B]; names: what
    each sample is called in errors; images: None where the prompts have none.
    """

    ids: np.ndarray
    offsets: np.ndarray
    loss_mask: np.ndarray
    engine_logprobs: np.ndarray
    advantages: np.ndarray
    group_ids: np.ndarray
    temperature: float = 1.0
    names: tuple[str, ...] = ()
    images: ImageBatch | None = None

    @property
    def size(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def predicted(self, samples: Sequence[int], depth: int = 0) -> int:
        """Tokens of these samples that are in the loss and have a position more than `depth` before them to be predicted from."""
        return sum(int((self.loss_mask[self.offsets[sample] + 1 + depth : self.offsets[sample + 1]] > 0).sum()) for sample in samples)

    def name(self, sample: int) -> str:
        return f"sample {self.names[sample]}" if self.names else f"sample number {sample}"

    def validate(self, vocab_size: int | None = None) -> None:
        """Raises ValueError, naming the sample, when the arrays do not describe the same positions or hold a value that cannot be trained on."""
        total = len(self.ids)
        if self.size < 1 or self.offsets[0] != 0 or self.offsets[-1] != total or (self.lengths < 1).any():
            raise ValueError(f"offsets {self.offsets[:3]}…{self.offsets[-1:]} do not cut {total} tokens into samples of at least one token")
        for key in ("loss_mask", "engine_logprobs", "advantages"):
            if len(getattr(self, key)) != total:
                raise ValueError(f"{key} has {len(getattr(self, key))} values for {total} tokens")
        if len(self.group_ids) != self.size or (self.names and len(self.names) != self.size):
            raise ValueError(f"{len(self.group_ids)} group ids and {len(self.names)} names for {self.size} samples")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")
        if self.images is not None:
            self.images.validate(total)
        used = self.loss_mask > 0
        self._refuse(used & ~np.isfinite(self.engine_logprobs), "an engine log-prob that is not finite")
        self._refuse(used & ~np.isfinite(self.advantages), "an advantage that is not finite")
        first = np.zeros(total, dtype=bool)
        first[self.offsets[:-1]] = True
        self._refuse(used & first, "a loss mask on its first token, which nothing predicts")
        self._refuse((self.ids < 0) | (self.ids >= vocab_size) if vocab_size else self.ids < 0, f"a token id outside the vocabulary of {vocab_size}")

    def _refuse(self, wrong: np.ndarray, what: str) -> None:
        if wrong.any():
            where = int(wrong.argmax())
            sample = int(np.searchsorted(self.offsets, where, side="right")) - 1
            raise ValueError(f"{self.name(sample)} has {what}, at token {where - int(self.offsets[sample])}")

    def to_dict(self) -> dict[str, Any]:
        """Plain arrays and numbers."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return cls(**values)

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[int]], **values: Any) -> Self:
        """From lists of token ids with their loss masks; log-probs and advantages default to 0 and 1, each sample to a group of its own."""
        lengths = [len(sequence) for sequence in sequences]
        total = sum(lengths)
        given: dict[str, Any] = {
            "engine_logprobs": np.zeros(total, np.float32),
            "advantages": np.ones(total, np.float32),
            "group_ids": np.arange(len(lengths)),
        }
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids = np.concatenate([np.asarray(sequence, np.int64) for sequence in sequences])
        mask = np.concatenate([np.asarray(mask, np.uint8) for mask in masks])
        return cls(ids=ids, offsets=offsets, loss_mask=mask, **{**given, **values})


@dataclass(frozen=True)
class MicroBatch:
    """Some samples packed for one forward pass, on the device.

    ids int64[T] (padding at the end is a sequence of its own); cu_seqlens int32[S+1] and longest describe the whole pack; rows_N int64[N]: positions whose
    logits predict a token in the loss; the rest is about those N predicted tokens: targets_N their ids, positions_N where they stand in the train batch (int64,
    host), sequence_tokens_N how many tokens of their sample are in the loss.

    positions int64[T], or [3, T] where the batch has images; images: those of the pack, None where it has none. ahead: for each depth of multi-token
    prediction, the same tokens as far as a draft layer of that depth can predict them.

    Under context parallelism T and N count this rank's share: each predicted token belongs to the rank that holds the position before it.
    """

    ids_T: torch.Tensor
    positions_T: torch.Tensor
    cu_seqlens: torch.Tensor
    longest: int
    rows_N: torch.Tensor
    targets_N: torch.Tensor
    positions_N: torch.Tensor
    sequence_tokens_N: torch.Tensor
    engine_logprobs_N: torch.Tensor
    advantages_N: torch.Tensor
    temperature: float
    images: Images | None = None
    ahead: tuple[Ahead, ...] = ()


@dataclass(frozen=True)
class Ahead:
    """What draft layers of one depth predict: rows_M int64[M], positions that hold their logits, and targets_M, the ids there."""

    rows_M: torch.Tensor
    targets_M: torch.Tensor


def pack(batch: TrainBatch, samples: Sequence[int], device: torch.device, multiple: int = 1, depths: int = 0, cp: int = 0, cp_size: int = 1) -> MicroBatch:
    """Pack these samples for rank `cp` of `cp_size` context-parallel ones; T is rounded up to a `multiple` (sequence parallelism splits T over tensor ranks)
    by a padding sequence. No samples: padding alone. `depths`: of multi-token prediction."""
    import torch

    lengths = batch.lengths[samples]
    sizes = np.array([padded(int(length), cp_size) for length in lengths], np.int64)
    unit = pack_multiple(multiple, cp_size)
    padding = -int(sizes.sum()) % unit if len(sizes) else unit
    sizes = np.concatenate([sizes, [padding] if padding else []]).astype(np.int64)
    lengths = np.concatenate([lengths, [0] if padding else []]).astype(np.int64)
    starts = np.concatenate([batch.offsets[:-1][samples], [0] if padding else []]).astype(np.int64)
    inside = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    real = inside < np.repeat(lengths, sizes)
    source = np.where(real, np.repeat(starts, sizes) + inside, 0)  # position in the train batch of each packed token
    local = local_rows(sizes, cp, cp_size)
    own = np.full(len(inside), -1)  # this rank's row of each position of the whole pack
    own[local] = np.arange(len(local))
    predicted = np.nonzero(real & (batch.loss_mask[source] > 0))[0]  # tokens in the loss; their logits stand one before
    in_sequence = np.add.reduceat(batch.loss_mask > 0, batch.offsets[:-1], dtype=np.int64)[samples]
    reachable = [predicted[inside[predicted] > depth] for depth in range(1, depths + 1)]
    reachable = [tokens[own[tokens - 1 - depth] >= 0] for depth, tokens in enumerate(reachable, 1)]
    counts = np.repeat(np.concatenate([in_sequence, [0] if padding else []]).astype(np.int64), sizes)
    predicted = predicted[own[predicted - 1] >= 0]
    where = source[predicted]
    positions = inside if batch.images is None else np.where(real, batch.images.positions[:, source], inside)

    def put(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.ascontiguousarray(values)).to(device=device, dtype=dtype)

    return MicroBatch(
        ids_T=put(np.where(real, batch.ids[source], PAD_ID)[local], torch.int64),
        positions_T=put(positions[..., local], torch.int64),
        cu_seqlens=put(np.concatenate([[0], np.cumsum(sizes)]), torch.int32),
        longest=int(sizes.max()),
        rows_N=put(own[predicted - 1], torch.int64),
        targets_N=put(batch.ids[where], torch.int64),
        positions_N=torch.as_tensor(where),
        sequence_tokens_N=put(counts[predicted], torch.int64),
        engine_logprobs_N=put(batch.engine_logprobs[where], torch.float32),
        advantages_N=put(batch.advantages[where], torch.float32),
        temperature=batch.temperature,
        images=_images(batch.images, source, real, device),
        ahead=tuple(Ahead(put(own[tokens - 1 - depth], torch.int64), put(batch.ids[source[tokens]], torch.int64)) for depth, tokens in enumerate(reachable, 1)),
    )


def _images(images: ImageBatch | None, source: np.ndarray, real: np.ndarray, device: torch.device) -> Images | None:
    picked = None if images is None else images.pick(source, real)
    if picked is None:
        return None
    import torch

    from vime.models.vision import Images

    return Images(*(torch.as_tensor(values).to(device) for values in (picked.patches, picked.grids, picked.tokens, picked.features)))
