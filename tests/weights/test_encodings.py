"""Messages: the same bits come out, a delta is applied to a copy and checked, and damage is found and named before anything is loaded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.errors import RunError
from vime.platforms.cpu import CpuPlatform
from vime.weights.encodings import capacity, read, read_header, total_bytes, write
from vime.weights.plan import Message, Unit

DIGEST = CpuPlatform().tensor_digest
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def unit(name: str, *shape: int) -> Unit:
    return Unit(name, shape, tuple((0, extent) for extent in shape), 0)


MESSAGE = Message(0, (unit("a", 5, 7), unit("scalar"), unit("b", 33), unit("c", 2, 3, 4)))


def random_tensors(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {item.key: torch.randn(item.shape, generator=generator).to(dtype) for item in MESSAGE.units}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def packed(tensors: dict[str, torch.Tensor], dtype: torch.dtype, base: dict[str, torch.Tensor] | None = None) -> tuple[torch.Tensor, dict[str, str]]:
    buffer = torch.full((capacity(MESSAGE, dtype.itemsize),), 0xAB, dtype=torch.uint8)
    result = write(MESSAGE, lambda item: tensors[item.key], buffer, dtype, DIGEST, base)
    return buffer[: result.nbytes].clone(), result.digests


@pytest.mark.parametrize("name", DTYPES)
def test_a_full_message_brings_the_same_bits_cast_once(name: str) -> None:
    dtype, tensors = DTYPES[name], random_tensors(0)
    buffer, digests = packed(tensors, dtype)
    assert len(buffer) == capacity(MESSAGE, dtype.itemsize)
    for item, tensor, digest in read(MESSAGE, buffer, dtype, DIGEST):
        assert torch.equal(bits(tensor), bits(tensors[item.key].to(dtype)))
        assert digest == digests[item.key] == DIGEST(tensors[item.key].to(dtype))


def test_whole_units_are_views_of_the_message_not_copies() -> None:
    buffer, _ = packed(random_tensors(0), torch.float32)
    span = range(buffer.data_ptr(), buffer.data_ptr() + len(buffer))
    assert all(tensor.data_ptr() in span for _, tensor, _ in read(MESSAGE, buffer, torch.float32, DIGEST))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(DTYPES)), st.sets(st.integers(0, 32)), st.booleans())
def test_a_delta_restores_the_version_bit_for_bit_and_leaves_its_base_alone(name: str, changed: set[int], special: bool) -> None:
    dtype = DTYPES[name]
    base = random_tensors(1, dtype)
    new = {key: tensor.clone() for key, tensor in base.items()}
    for position in changed:
        new["b"][position] += 1
    if special:  # equal as numbers, different as bits
        base["b"][0], new["b"][0] = 0.0, -0.0
        base["a"][0, 0], new["a"][0, 0] = float("nan"), float("nan")
    before = {key: bits(tensor).clone() for key, tensor in base.items()}
    buffer, _ = packed(new, dtype, base)
    for item, tensor, _ in read(MESSAGE, buffer, dtype, DIGEST, base):
        assert torch.equal(bits(tensor), bits(new[item.key]))
    assert all(torch.equal(before[key], bits(tensor)) for key, tensor in base.items())
    counts, _ = read_header(MESSAGE, buffer)
    assert total_bytes(MESSAGE, counts, dtype.itemsize) == len(buffer) <= capacity(MESSAGE, dtype.itemsize)


def test_an_unchanged_version_costs_only_its_header() -> None:
    base = random_tensors(1)
    buffer, _ = packed(base, torch.float32, base)
    assert read_header(MESSAGE, buffer)[0] == [0, 0, 0, 0]
    assert len(buffer) == 128


def test_a_delta_that_would_be_larger_is_sent_whole() -> None:
    base = random_tensors(1)
    buffer, _ = packed(random_tensors(2), torch.float32, base)
    assert read_header(MESSAGE, buffer)[0] == [-1, -1, -1, -1]


@pytest.mark.parametrize("with_base", [False, True])
def test_one_flipped_bit_is_found_and_its_tensor_named(with_base: bool) -> None:
    base = random_tensors(1) if with_base else None
    tensors = {key: tensor.clone() for key, tensor in random_tensors(1).items()}
    tensors["b"][3] += 1
    buffer, _ = packed(tensors, torch.float32, base)
    buffer[-64 if with_base else -128] ^= 1  # a changed value of b; the first byte of c
    with pytest.raises(RunError, match=r"weight sync: (b|c): the bytes received .* are not those sent"):
        read(MESSAGE, buffer, torch.float32, DIGEST, base)


def test_a_delta_against_the_wrong_base_is_refused() -> None:
    base, other = random_tensors(1), random_tensors(2)
    new = {key: tensor.clone() for key, tensor in base.items()}
    new["a"][0, 0] += 1
    buffer, _ = packed(new, torch.float32, base)
    with pytest.raises(RunError, match="a: the bytes received"):
        read(MESSAGE, buffer, torch.float32, DIGEST, other)
    with pytest.raises(RunError, match="a: a delta arrived, but this engine holds no base"):
        read(MESSAGE, buffer, torch.float32, DIGEST, None)


def test_digest_tells_bits_shape_and_dtype_apart() -> None:
    values = torch.arange(12, dtype=torch.float32)
    digests = {
        DIGEST(values),
        DIGEST(values.view(3, 4)),
        DIGEST(values.view(4, 3)),
        DIGEST(values.to(torch.bfloat16)),
        DIGEST(values.view(torch.int32)),
        DIGEST(-values),
    }
    assert len(digests) == 6
    assert DIGEST(values.view(3, 4).t()) == DIGEST(values.view(3, 4).t().contiguous())
    assert DIGEST(torch.tensor(0.0)) != DIGEST(torch.tensor(-0.0))
    assert DIGEST(torch.empty(0)) == DIGEST(torch.empty(0)) != DIGEST(torch.empty(0, 2))


@pytest.mark.parametrize("delta", [False, True])
def test_a_unit_marked_float32_keeps_its_bits_among_narrower_ones(delta: bool) -> None:
    bias = Unit("bias", (9,), ((0, 9),), 0, float32=True)
    message = Message(0, (unit("a", 5, 7), bias, unit("b", 33)))
    generator = torch.Generator().manual_seed(2)
    tensors = {item.key: torch.randn(item.shape, generator=generator) for item in message.units}
    base = {key: tensor.to(torch.float32 if key == "bias" else torch.bfloat16) for key, tensor in tensors.items()}
    tensors["bias"] = tensors["bias"].clone()
    tensors["bias"][3] += 1e-6  # lost in bfloat16
    buffer = torch.full((capacity(message, 2),), 0xAB, dtype=torch.uint8)
    result = write(message, lambda item: tensors[item.key], buffer, torch.bfloat16, DIGEST, base if delta else None)
    assert result.nbytes <= len(buffer)
    units = {item.key: tensor for item, tensor, _ in read(message, buffer[: result.nbytes], torch.bfloat16, DIGEST, base if delta else None)}
    assert torch.equal(bits(units["bias"]), bits(tensors["bias"]))
    assert torch.equal(bits(units["a"]), bits(tensors["a"].to(torch.bfloat16)))
    counts, _ = read_header(message, buffer)
    assert total_bytes(message, counts, 2) == result.nbytes
