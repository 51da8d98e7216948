"""Rotary position embeddings as config.json describes them.

Formulas: Su et al., arXiv 2104.09864 (default); "linear" position interpolation, arXiv 2306.15595; Llama 3.1's scaling by wavelength ("llama3"); YaRN,
arXiv 2309.00071. Megatron-Core's own modules have constants of single models built in, so the inverse frequencies are computed here and put in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.errors import UserError
from vime.models.base import HfConfig, setting

if TYPE_CHECKING:
    import torch

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """A rotary embedding: base, share of a head's dimensions that is rotated, and scaling."""

    theta: float
    kind: str = "default"
    percent: float = 1.0
    factor: float = 1.0
    original: int = 0  # positions the model was first trained on (llama3, yarn)
    low: float = 1.0  # llama3: low_freq_factor
    high: float = 4.0  # llama3: high_freq_factor
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    attention_factor: float | None = None  # yarn: given outright
    truncate: bool = True  # yarn

    @property
    def scale(self) -> float:
        """Factor on cos and sin (YaRN's attention factor)."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def read_rope(hf_config: HfConfig, *, percent: float | None = None, theta: float = 10000.0) -> Rope:
    """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before). `percent`, `theta`: the family's defaults. Raises UserError for a
    kind that is not supported or lacks a number."""
    given: Mapping[str, Any] = {**(setting(hf_config, "rope_scaling", None) or {}), **(setting(hf_config, "rope_parameters", None) or {})}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in KINDS:
        raise UserError(f"config.json: rope type {kind!r} is not supported: only {', '.join(KINDS)} are")
    missing = [key for key in ("factor",) if kind != "default" and given.get(key) is None]
    if missing:
        raise UserError(f"config.json: rope type {kind!r} without {missing[0]}")
    fraction = given.get("partial_rotary_factor", setting(hf_config, "partial_rotary_factor", 1.0 if percent is None else percent))
    return Rope(
        theta=float(given.get("rope_theta", setting(hf_config, "rope_theta", theta))),
        kind=kind,
        percent=float(fraction),
        factor=float(given.get("factor") or 1.0),
        original=int(given.get("original_max_position_embeddings") or setting(hf_config, "max_position_embeddings", 0)),
        low=float(given.get("low_freq_factor", 1.0)),
        high=float(given.get("high_freq_factor", 4.0)),
        beta_fast=float(given.get("beta_fast") or 32.0),
        beta_slow=float(given.get("beta_slow") or 1.0),
        mscale=given.get("mscale"),
        mscale_all_dim=given.get("mscale_all_dim"),
        attention_factor=given.get("attention_factor"),
        truncate=bool(given.get("truncate", True)),
    )


def inverse_frequencies(rope: Rope, dim: int) -> torch.Tensor:
    """float32[dim / 2] for heads of which `dim` dimensions are rotated."""
    import torch

    frequencies = 1.0 / (rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim))
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequencies)
    return _yarn(rope, frequencies, dim) if rope.kind == "yarn" else frequencies


def _llama3(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are slowed by the factor, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    smooth = ((rope.original / wavelengths - rope.low) / (rope.high - rope.low)).clamp(0, 1)
    return (1 - smooth) * frequencies / rope.factor + smooth * frequencies


def _yarn(rope: Rope, frequencies: torch.Tensor, dim: int) -> torch.Tensor:
    """Dimensions that turn more than beta_fast times over the original length are kept, those below beta_slow interpolated, a ramp between."""
    import torch

    def turning(times: float) -> float:
        return dim * math.log(rope.original / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = turning(rope.beta_fast), turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies / rope.factor * ramp + frequencies * (1 - ramp)


def install(model: torch.nn.Module, rope: Rope) -> None:
    """Put the frequencies into the RotaryEmbedding of a GPTModel (not of an MLA model: there each layer has its own, made by Megatron from its config)."""
    rotary: Any = model.rotary_pos_emb
    rotary.inv_freq = inverse_frequencies(rope, 2 * len(rotary.inv_freq)).to(rotary.inv_freq.device)
    if rope.scale != 1.0:  # what Megatron's attention reads its factor on cos and sin from
        config: Any = model.config
        config.yarn_rotary_scaling_factor, config.yarn_mscale, config.yarn_mscale_all_dim = math.exp(10 * (rope.scale - 1)), None, None
