"""What a model family provides, and the one weight table that loading, export and every weight transport read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vime.config.tree import ParallelConfig
from vime.errors import UserError

if TYPE_CHECKING:
    import torch
    from megatron.core.transformer import TransformerConfig

HfConfig = Mapping[str, Any]  # a config.json, as read
Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Layout:
    """Where a rank stands in the trainer's grid. Ranks are numbered as Megatron does (order tp-cp-ep-dp-pp: tensor varies fastest, pipeline slowest).

    The experts of a pipeline stage have a grid of their own over the same ranks (expert tensor, expert, expert data): its coordinates follow from the others.
    """

    tp: int = 0
    tp_size: int = 1
    pp: int = 0
    pp_size: int = 1
    dp: int = 0
    dp_size: int = 1
    layer_offset: int = 0  # of this pipeline stage's first layer in the whole model
    cp: int = 0
    cp_size: int = 1
    ep_size: int = 1
    etp_size: int = 1

    @property
    def stage_size(self) -> int:
        """Ranks of a pipeline stage."""
        return self.tp_size * self.cp_size * self.dp_size

    @property
    def place(self) -> int:
        """This rank's number within its pipeline stage."""
        return self.tp + self.tp_size * (self.cp + self.cp_size * self.dp)

    @property
    def etp(self) -> int:
        """Coordinate in the experts' tensor-parallel group."""
        return self.place % self.etp_size

    @property
    def ep(self) -> int:
        """Coordinate in the expert-parallel group."""
        return self.place // self.etp_size % self.ep_size

    def rank(self, *, tp: int | None = None, dp: int | None = None, cp: int | None = None) -> int:
        """Global rank of the process with these coordinates, the others being this rank's own."""
        tp = self.tp if tp is None else tp
        dp = self.dp if dp is None else dp
        cp = self.cp if cp is None else cp
        return tp + self.tp_size * (cp + self.cp_size * dp) + self.stage_size * self.pp

    def expert_rank(self, *, etp: int, ep: int) -> int:
        """The lowest global rank of this pipeline stage with these coordinates in the experts' grid."""
        return etp + self.etp_size * ep + self.stage_size * self.pp


@dataclass(frozen=True)
class Piece:
    """One slice of a Hugging Face tensor and where it lives in a local parameter.

    `view(parameter)` is a view into the parameter whose elements, reshaped, are exactly `hf_slice` of the tensor. `split`: the slice differs between
    tensor-parallel ranks (of an expert: expert-tensor-parallel ranks), else each holds the same. `expert`: it belongs to a routed expert, so its owner is
    found in the experts' grid. `copy`: another pipeline stage holds the original; loaded, never exported. `alias`: a checkpoint may hold these values a
    second time under this name; exported, never loaded (but checked to be equal).
    """

    hf_name: str
    hf_shape: tuple[int, ...]
    hf_slice: Slices
    view: Callable[[torch.Tensor], torch.Tensor]
    split: bool = False
    copy: bool = False
    expert: bool = False
    alias: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the slice."""
        return tuple(part.stop - part.start for part in self.hf_slice)

    def owner_rank(self, layout: Layout) -> int:
        """The lowest global rank that holds this same slice."""
        if self.expert:
            return layout.expert_rank(etp=layout.etp if self.split else 0, ep=layout.ep)
        return layout.rank(tp=layout.tp if self.split else 0, dp=0, cp=0)


@dataclass(frozen=True)
class Stored:
    """Another form in which checkpoints hold a tensor: as `part` of the tensor `name` (an index drops its axis), its last two axes exchanged if `turned`."""

    name: str
    shape: tuple[int, ...]  # of the whole of `name`
    part: tuple[int | slice, ...]
    turned: bool = False


@dataclass(frozen=True)
class WeightTable:
    """Local parameters ↔ Hugging Face tensors.

    `shapes`: every tensor of the checkpoint with its shape, in the order they are written. `aliases`: names under which a checkpoint may hold a tensor a
    second time → the tensor (the head of a tied model, the embedding of an MTP layer): where they are in `shapes` they are written and sent too, else only
    accepted. `ignored`: names a checkpoint may hold that are no weights of the model. `draft`: tensors that belong to the draft (MTP) model alone.
    `float32`: tensors kept and sent in float32 whatever the model's dtype (a routing bias: rounding it changes which experts are chosen). `stored`: another
    form in which a checkpoint may hold a tensor of this name; read, never written.
    """

    shapes: Mapping[str, tuple[int, ...]]
    find: Callable[[str, Layout], list[Piece]]
    tied: bool = False  # the output layer is the embedding
    ignored: Callable[[str], bool] = field(default=lambda name: name.endswith("rotary_emb.inv_freq"))
    aliases: Mapping[str, str] = field(default_factory=dict)
    draft: frozenset[str] = frozenset()
    float32: frozenset[str] = frozenset()
    stored: Callable[[str], Stored | None] = field(default=lambda name: None)

    def pieces(self, local_name: str, layout: Layout) -> list[Piece]:
        """The pieces of one parameter or buffer of this rank's model, named as in `local_weights`. Raises KeyError for a name the family does not know."""
        return self.find(local_name, layout)

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
    rotary_percent: float = 1.0  # of a head's dimensions that are rotated


@dataclass(frozen=True)
class Built:
    """What a model is built from on one rank: see `Family.build`."""

    hf_config: HfConfig
    megatron: TransformerConfig
    shape: ModelShape
    layout: Layout
    core_attention: type | None  # replaces Megatron's local attention; None means TransformerEngine's layers
    mtp: bool = False  # with the multi-token-prediction layers

    @property
    def first(self) -> bool:
        """Whether this rank's stage embeds tokens."""
        return self.layout.pp == 0

    @property
    def last(self) -> bool:
        """Whether this rank's stage makes logits."""
        return self.layout.pp == self.layout.pp_size - 1


class Family(ABC):
    """One model family. `vime/models/text.py: TextFamily` does most of it for decoder-only models."""

    name: str
    model_types: tuple[str, ...]  # config.json's model_type
    title: str  # as people call it
    has_experts = False
    vision = False

    def matches(self, hf_config: HfConfig) -> bool:
        """Whether the model in this config.json is of the family."""
        return hf_config.get("model_type") in self.model_types

    def mtp_layers(self, hf_config: HfConfig) -> int:
        """How many multi-token-prediction layers the model has."""
        return 0

    @abstractmethod
    def shape(self, hf_config: HfConfig) -> ModelShape:
        """Sizes outside the TransformerConfig. Raises UserError on a setting the family does not support."""

    @abstractmethod
    def megatron_config(self, hf_config: HfConfig, parallel: ParallelConfig, overrides: Mapping[str, Any], *, mtp: bool = False) -> TransformerConfig:
        """The TransformerConfig of the architecture; `overrides` win. Raises UserError when the layout does not divide the model."""

    @abstractmethod
    def check_layout(self, hf_config: HfConfig, parallel: ParallelConfig) -> None:
        """Raises UserError, with the numbers, when the layout does not divide the model."""

    @abstractmethod
    def build(self, built: Built) -> torch.nn.Module:
        """This rank's part of the model, its weights not yet set. torch.distributed and Megatron's parallel state are up."""

    @abstractmethod
    def weight_table(self, hf_config: HfConfig, *, mtp: bool = False) -> WeightTable:
        """The family's table; any padding of the vocabulary is found from the layout alone (`padded_vocab`). Without `mtp` the checkpoint's MTP layers are
        ignored, and an export has none."""

    def exported_config(self, hf_config: HfConfig, *, mtp: bool = False) -> dict[str, Any]:
        """config.json of an export."""
        return dict(hf_config)


def local_weights(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a rank's model that a checkpoint holds: parameters, and persistent buffers (a router's correction bias is one)."""
    yield from model.named_parameters()
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


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


def need(hf_config: HfConfig, key: str) -> int:
    """A size. Raises UserError when the key is missing or no whole number from 1 up."""
    value = setting(hf_config, key, None)
    if value is None:
        raise UserError(f"config.json: {key} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"config.json: {key} is {value!r}, not a whole number from 1 up")
    return value


def text_config(hf_config: HfConfig) -> dict[str, Any]:
    """The language model's part of a config.json: its text_config laid under what stands at the top, or all of it."""
    return {**(hf_config.get("text_config") or {}), **{key: value for key, value in hf_config.items() if key != "text_config" and value is not None}}


def tied(hf_config: HfConfig) -> bool:
    """Whether the output layer is the embedding. The flag may stand at the top, in a nested text_config, or be absent (every family's default: untied)."""
    return bool(setting(hf_config, "tie_word_embeddings", False))
