"""A Megatron GPT model that also sees: Hugging Face's vision tower in front, its features among the token embeddings and in the first layers (deepstack).

The tower stands whole on every tensor-parallel rank of the first pipeline stage; it is small beside the text model. Every rank computes the same features
from the same images, so every rank gets the same gradient, provided that the features' own gradient is whole: under sequence parallelism a rank sees only
its rows of the pack, and the gradient is summed over the ranks where the features are handed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region
from megatron.core.transformer.transformer_layer import TransformerLayer

from vime.models.mrope import InterleavedRotary


@dataclass(frozen=True)
class Images:
    """The images of a micro-batch, each once. patches [P, channels · time · side²] of all of them, end to end; grids int64[I, 3] (time, height, width in
    patches); tokens int64[N]: positions of the image tokens in the pack; features int64[N]: which feature row (of all images, end to end) each one is."""

    patches: torch.Tensor
    grids: torch.Tensor
    tokens_N: torch.Tensor
    features_N: torch.Tensor


class VisionTower(torch.nn.Module):
    """Hugging Face's vision model of a `vision_config`, weights not set."""

    def __init__(self, vision_config: Mapping[str, Any]):
        super().__init__()
        self.module: Any = hugging_face_tower(vision_config)
        for parameter in self.module.parameters():
            # Megatron averages such gradients over tensor-parallel ranks: they are equal already, up to kernels whose order of summation varies
            parameter.average_gradients_across_tp_domain = True  # type: ignore[attr-defined]

    def forward(self, patches: torch.Tensor, grids: torch.Tensor) -> list[torch.Tensor]:
        """One feature row per merge of patches [F, H] for the embeddings, then one such tensor for each deepstack layer."""
        out = self.module(patches.to(self.module.dtype), grid_thw=grids)
        return [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]


def hugging_face_tower(vision_config: Mapping[str, Any]) -> torch.nn.Module:
    """The tower on the current default device, its parameters not initialised."""
    from transformers import AutoConfig, AutoModel
    from transformers.initialization import no_init_weights

    fields = {key: value for key, value in vision_config.items() if key != "model_type"}
    with no_init_weights():
        return AutoModel.from_config(AutoConfig.for_model(vision_config["model_type"], **fields), attn_implementation="sdpa")


@dataclass
class Deepstack:
    """Features to be added after the first layers. They are handed to the layers without their graph, because a recomputed layer would run it twice; their
    gradients are collected here and leave through `_HandOut`."""

    rows: torch.Tensor  # of this rank's hidden states
    features: list[torch.Tensor]  # one row each
    gradients: list[torch.Tensor | None] = field(default_factory=list)

    def add(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """hidden [T, 1, H] after layer number `layer` (from 0)."""
        return _Add.apply(hidden, self, layer) if layer < len(self.features) else hidden


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, deepstack: Deepstack, layer: int) -> torch.Tensor:
        ctx.deepstack, ctx.layer = deepstack, layer
        return hidden.index_add(0, deepstack.rows, deepstack.features[layer][:, None])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ctx.deepstack.gradients[ctx.layer] = grad[ctx.deepstack.rows, 0]
        return grad, None, None


class _HandOut(torch.autograd.Function):
    """Passes the decoder's input on. The gradient comes back here last, when every layer has left its part with the features."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, deepstack: Deepstack, *features: torch.Tensor) -> torch.Tensor:
        ctx.deepstack = deepstack
        deepstack.gradients = [None] * len(features)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None, *ctx.deepstack.gradients


class DeepstackLayer(TransformerLayer):
    """A layer that takes the deepstack features, if the micro-batch has any for it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden, context = super().forward(*args, **kwargs)
        deepstack = getattr(kwargs.get("packed_seq_params"), "_vime_deepstack", None)
        return (hidden if deepstack is None else deepstack.add(hidden, self.layer_number - 1)), context


class VisionGPTModel(GPTModel):
    """GPTModel with a vision tower (`vision`) on the first stage and M-RoPE."""

    def __init__(self, *args: Any, vision_config: Mapping[str, Any], rotary: InterleavedRotary, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.rotary_pos_emb = rotary
        if self.pre_process:
            self.vision = VisionTower(vision_config)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attention_mask: Any,
        *,
        packed_seq_params: Any,
        images: Images | None = None,
        **kwargs: Any,
    ) -> Any:
        """As GPTModel's on a pack; `position_ids` [3, 1, T] (of text alone: [1, T]), `images` only where the pack has any."""
        hidden = None
        if self.pre_process:
            hidden = self.embedding(input_ids=input_ids, position_ids=position_ids)
            hidden = self._without_images(hidden) if images is None else self._see(hidden, images, packed_seq_params)
        return super().forward(input_ids, position_ids, attention_mask, decoder_input=hidden, packed_seq_params=packed_seq_params, **kwargs)

    def _see(self, hidden: torch.Tensor, images: Images, packed_seq_params: Any) -> torch.Tensor:
        """hidden [T / sequence-parallel ranks, 1, H] with the image tokens' rows replaced by the features of their images."""
        rows, picked = self._local(images, len(hidden))
        features = [feature.to(hidden.dtype) for feature in self.vision(images.patches, images.grids)]
        if self.config.sequence_parallel:
            features = [copy_to_tensor_model_parallel_region(feature) for feature in features]
        first, *deeper = (feature.index_select(0, picked) for feature in features)
        hidden = hidden.index_copy(0, rows, first[:, None])
        if deeper:
            deepstack = Deepstack(rows, [feature.detach() for feature in deeper])
            packed_seq_params._vime_deepstack = deepstack
            hidden = _HandOut.apply(hidden, deepstack, *deeper)
        return hidden

    def _local(self, images: Images, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of this rank's hidden states that are image tokens, and which feature each is."""
        if not self.config.sequence_parallel:
            return images.tokens_N, images.features_N
        here = images.tokens_N - self.pg_collection.tp.rank() * length
        inside = (here >= 0) & (here < length)
        return here[inside], images.features_N[inside]

    def _without_images(self, hidden: torch.Tensor) -> torch.Tensor:
        """Text alone: the tower's gradients are zero, but they are there, for Megatron's overlapped reduction waits for every parameter's."""
        trained = [parameter for parameter in self.vision.parameters() if parameter.requires_grad]
        if not (trained and torch.is_grad_enabled()):
            return hidden
        return hidden + 0.0 * torch.stack([parameter.flatten()[0] for parameter in trained]).sum().to(hidden.dtype)
