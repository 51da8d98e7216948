"""Digests of tensors: of host memory by xxh3, of device memory on the device, so that nothing but 16 bytes crosses to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    import torch

# Odd 64-bit constants as signed numbers: the golden ratio's, and those of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
# generators").
GOLDEN, FIRST, SECOND = -7046029254386353131, -4658895280553007687, -7723592293110705685
CHUNK = 2**24  # words hashed at once: 128 MiB, and a few times that while it is mixed


def host_digest(tensor: torch.Tensor) -> str:
    """128 bits of dtype, shape and bytes (xxh3). A device tensor is copied to the host first."""
    import torch

    digest = xxhash.xxh3_128(header(tensor))
    if tensor.numel():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def device_digest(tensor: torch.Tensor) -> str:
    """128 bits of dtype, shape and bytes, computed where the tensor is.

    Two sums modulo 2⁶⁴ over 8-byte words, each word mixed with its position (SplitMix64's finalizer). Integer sums do not depend on the order they are made
    in, so every device gives the same; a changed, moved or exchanged word changes both sums but for a chance of 2⁻¹²⁸.
    """
    import torch

    words = as_words(tensor)
    totals = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for start in range(0, words.numel(), CHUNK):
        part = words[start : start + CHUNK]
        position = torch.arange(start + 1, start + 1 + part.numel(), dtype=torch.int64, device=tensor.device)
        mixed = mix(part + position * GOLDEN)
        totals[0] += mixed.sum()
        totals[1] += mix(mixed ^ (position * FIRST)).sum()
    first, second = (value % 2**64 for value in totals.tolist())
    return xxhash.xxh3_128(header(tensor) + f"{first:016x}{second:016x}".encode()).hexdigest()


def header(tensor: torch.Tensor) -> bytes:
    return f"{tensor.dtype}{tuple(tensor.shape)}".encode()


def as_words(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes as int64, the last word filled up with zeros."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8, device=tensor.device)
    rest = -flat.numel() % 8
    if rest or flat.data_ptr() % 8:  # a view of int64 needs whole, aligned words
        flat = torch.cat([flat, flat.new_zeros(rest)])
    return flat.view(torch.int64)


def mix(words: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finalizer; int64 arithmetic wraps. torch shifts arithmetically, so the copied sign bits are masked off."""
    words = (words ^ ((words >> 30) & (2**34 - 1))) * FIRST
    words = (words ^ ((words >> 27) & (2**37 - 1))) * SECOND
    return words ^ ((words >> 31) & (2**33 - 1))
