"""What a model family provides, and the one weight table that loading, export and every weight transport read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from vime.config.tree import ParallelConfig
from vime.errors import UserError

if TYPE_CHECKING:
    import torch
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.spec_utils import ModuleSpec

HfConfig = Mapping[str, Any]  # a config.json, as read
Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Layout:
    """Where a rank stands in the trainer's grid. Ranks are numbered as Megatron does (order tp-cp-dp-pp: tensor varies fastest, pipeline slowest).

    Experts divide the ranks of a pipeline stage anew: `etp` (expert tensor) fastest, then `ep` (which experts), then their data-parallel copies.
    """

    tp: int = 0
    tp_size: int = 1
    cp: int = 0
    cp_size: int = 1
    pp: int = 0
    pp_size: int = 1
    dp: int = 0
    dp_size: int = 1
    ep: int = 0
    ep_size: int = 1
    etp: int = 0
    etp_size: int = 1
    layer_offset: int = 0  # of this pipeline stage's first layer in the whole model

    def rank(self, *, tp: int | None = None, cp: int | None = None, dp: int | None = None) -> int:
        """Global rank of the process with these coordinates, the others being this rank's own."""
        tp = self.tp if tp is None else tp
        cp = self.cp if cp is None else cp
        dp = self.dp if dp is None else dp
        return tp + self.tp_size * (cp + self.cp_size * (dp + self.dp_size * self.pp))

    def expert_rank(self, *, etp: int | None = None) -> int:
        """Lowest global rank of this stage that holds the same experts, and the same slice of them or that of `etp`."""
        stage = self.tp_size * self.cp_size * self.dp_size
        return (self.etp if etp is None else etp) + self.etp_size * self.ep + stage * self.pp


@dataclass(frozen=True)
class Piece:
    """One slice of a Hugging Face tensor and where it lives in a local parameter.

    `view(parameter)` is a view into the parameter whose elements, reshaped, are exactly `hf_slice` of the tensor. `split`: the slice differs between
    tensor-parallel ranks (else each holds the same). `copy`: another pipeline stage holds the original; loaded, never exported. `expert`: the parameter is
    one of the local experts', whose tensor-parallel ranks are the expert ones.
    """

    hf_name: str
    hf_shape: tuple[int, ...]
    hf_slice: Slices
    view: Callable[[torch.Tensor], torch.Tensor]
    split: bool = False
    copy: bool = False
    expert: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the slice."""
        return tuple(part.stop - part.start for part in self.hf_slice)

    def owner_rank(self, layout: Layout) -> int:
        """The lowest global rank that holds this same slice."""
        if self.expert:
            return layout.expert_rank(etp=None if self.split else 0)
        return layout.rank(tp=layout.tp if self.split else 0, cp=0, dp=0)


@dataclass(frozen=True)
class WeightTable:
    """Local parameters ↔ Hugging Face tensors.

    `shapes`: every tensor of the checkpoint with its shape, in the order they are written. `ignored`: names a checkpoint may hold that are no weights of the
    model.
    """

    shapes: Mapping[str, tuple[int, ...]]
    find: Callable[[str, Layout], list[Piece]]
    tied: bool = False  # the output layer is the embedding
    ignored: Callable[[str], bool] = field(default=lambda name: name.endswith("rotary_emb.inv_freq"))

    def pieces(self, local_param_name: str, layout: Layout) -> list[Piece]:
        """The pieces of one parameter of this rank's model, named as in its `named_parameters()`. Raises KeyError for a name the family does not know."""
        return self.find(local_param_name, layout)

    def local(self, names: Iterable[str], layout: Layout) -> Iterator[tuple[str, Piece]]:
        """(parameter name, piece) of all `names`."""
        for name in names:
            for piece in self.pieces(name, layout):
                yield name, piece


@dataclass(frozen=True)
class ModelShape:
    """What Megatron's GPTModel takes beside its TransformerConfig."""

    vocab_size: int
    max_position_embeddings: int
    rotary_base: float
    tied: bool


class Family(Protocol):
    """One model family."""

    name: str

    def matches(self, hf_config: HfConfig) -> bool:
        """Whether the model in this config.json is of the family."""

    def shape(self, hf_config: HfConfig) -> ModelShape:
        """Sizes outside the TransformerConfig. Raises UserError on a setting the family does not support."""

    def megatron_config(self, hf_config: HfConfig, parallel: ParallelConfig, overrides: Mapping[str, Any]) -> TransformerConfig:
        """The TransformerConfig of the architecture; `overrides` win. Raises UserError when the layout does not divide the model."""

    def layer_spec(self, config: TransformerConfig, core_attention: type | None) -> ModuleSpec:
        """The layers; `core_attention` replaces Megatron's local attention, None means TransformerEngine's."""

    def weight_table(self, hf_config: HfConfig) -> WeightTable:
        """The family's table; any padding of the vocabulary is found from the layout alone (`padded_vocab`)."""


def padded_vocab(vocab_size: int, tensor_parallel: int) -> int:
    """Rows of the embedding over all tensor-parallel ranks: the vocabulary rounded up to a multiple of their number."""
    return -(-vocab_size // tensor_parallel) * tensor_parallel


def rows(name: str, shape: tuple[int, ...], start: int, stop: int) -> Slices:
    """`shape`, cut to [start, stop) of its first axis."""
    if not 0 <= start <= stop <= shape[0]:
        raise ValueError(f"rows {start}..{stop} of {name} {list(shape)}")
    return (slice(start, stop), *(slice(0, size) for size in shape[1:]))


def whole(shape: tuple[int, ...]) -> Slices:
    """All of it."""
    return tuple(slice(0, size) for size in shape)


def share(what: str, size: int, parts: int, key: str) -> int:
    """`size` / `parts`, or a UserError with both numbers."""
    if size % parts:
        raise UserError(f"{key} {parts} does not divide the model's {what} ({size}): choose a divisor of {size}")
    return size // parts


def setting(hf_config: HfConfig, key: str, default: Any) -> Any:
    """A value of config.json that may stand at the top or in a nested text_config (multimodal models); the top wins."""
    for place in (hf_config, hf_config.get("text_config") or {}):
        if place.get(key) is not None:
            return place[key]
    return default
