"""Tiny Hugging Face models, and one of them as a trainer that sends its weights: the reference is transformers, so nothing of vime's trainer is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers

from vime.platforms.cpu import CpuPlatform
from vime.weights.sender import SenderMixin, WeightSender

COMMON = {
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.08,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}
SIZES = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}


def dense(path: Path, *, tied: bool = True) -> Path:
    """A two-layer Qwen3 of 190 k parameters."""
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **COMMON, tie_word_embeddings=tied)).save_pretrained(path)
    return path


def mixture(path: Path) -> Path:
    """A two-layer Qwen3-MoE with 8 experts."""
    torch.manual_seed(0)
    experts = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "norm_topk_prob": True}
    transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SIZES, **experts, **COMMON, tie_word_embeddings=False)).save_pretrained(path)
    return path


@dataclass(frozen=True)
class Shard:
    """As `vime.weights.exporter.Shard`."""

    hf_name: str
    global_shape: tuple[int, ...]
    slice: tuple[slice, ...]
    owner_rank: int
    tensor: torch.Tensor


def rows(name: str, tensor: torch.Tensor, ranks: int) -> Iterator[Shard]:
    """A tensor cut along its first dimension over `ranks` owners."""
    for rank, part in enumerate(tensor.chunk(ranks)):
        start = rank * tensor.chunk(ranks)[0].shape[0]
        yield Shard(name, tuple(tensor.shape), (slice(start, start + part.shape[0]), *(slice(0, extent) for extent in tensor.shape[1:])), rank, part)


class ReferenceTrainer(SenderMixin):
    """One rank of `ranks`; every rank holds the whole model and owns a part of each tensor's rows."""

    def __init__(self, path: Path, rank: int = 0, ranks: int = 1, dtype: torch.dtype = torch.float32):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.ranks, self.dtype = ranks, dtype
        self.weight_sender = WeightSender(CpuPlatform(), rank, self.shards)

    def shards(self) -> Iterator[Shard]:
        for name, tensor in self.model.state_dict().items():
            if self.model.config.tie_word_embeddings and name == "lm_head.weight":
                continue
            for hf_name, part in split_experts(name, tensor):
                yield from rows(hf_name, part, self.ranks)

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        model = self.model if self.dtype == torch.float32 else self.model.to(self.dtype)
        ids = torch.tensor(sequences)
        values = model(ids).logits.float().log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
        self.model.float()
        return list(values.numpy())

    @torch.no_grad()
    def change(self, seed: int, fraction: float = 1.0) -> None:
        """A large step: every sync must move the engine visibly."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model.parameters():
            chosen = torch.rand(parameter.shape, generator=generator) < fraction
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.03 * chosen)


def split_experts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """transformers holds experts fused; checkpoints name each one."""
    if tensor.ndim != 3:
        yield name, tensor
        return
    prefix = name.rsplit(".", 1)[0]
    for index, expert in enumerate(tensor):
        if name.endswith("gate_up_proj"):
            gate, up = expert.chunk(2)
            yield f"{prefix}.{index}.gate_proj.weight", gate
            yield f"{prefix}.{index}.up_proj.weight", up
        else:
            yield f"{prefix}.{index}.down_proj.weight", expert
