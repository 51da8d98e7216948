"""Digests and parking: what a device's memory must survive."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vime.platforms.digest import device_digest, host_digest
from vime.platforms.memory import Parked

DIGESTS = [host_digest, device_digest]


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_digest_depends_on_every_byte_on_the_shape_and_on_the_dtype(digest):
    tensor = torch.arange(1001, dtype=torch.float32)
    seen = {digest(tensor), digest(tensor.reshape(7, 143)), digest(tensor.view(torch.int32))}
    for index in (0, 500, 1000):
        changed = tensor.clone()
        changed.view(torch.int32)[index] ^= 1
        seen.add(digest(changed))
    swapped = tensor.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    assert len(seen | {digest(swapped)}) == 7
    assert digest(tensor.clone()) == digest(tensor)


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_digest_of_a_view_is_that_of_its_copy(digest):
    whole = torch.randn(64, 33, dtype=torch.bfloat16)
    for view in (whole[1:, ::3], whole.T, whole[3, 5:], whole[:0], whole[0, 0]):
        assert digest(view) == digest(view.clone(memory_format=torch.contiguous_format))


@given(st.integers(0, 70), st.sampled_from([torch.uint8, torch.bfloat16, torch.float32]))
def test_odd_sizes_and_offsets_have_a_digest(size, dtype):
    tensor = torch.arange(size + 1).to(dtype)
    assert device_digest(tensor[1:]) == device_digest(tensor[1:].clone())


def test_both_sums_of_a_device_digest_are_what_they_are():
    """Trainers and engines must agree across processes and versions; and one sum alone would notice an exchange too."""
    assert device_digest(torch.arange(5, dtype=torch.int64)) == "64b998f453cf55a3aff21cf345671eda"


def test_words_in_other_chunks_differ(monkeypatch):
    tensor = torch.randn(4096)
    whole = device_digest(tensor)
    monkeypatch.setattr("vime.platforms.digest.CHUNK", 100)
    assert device_digest(tensor) == whole


def test_parked_memory_is_given_back_and_every_view_is_whole_again():
    storage = torch.randn(1000)
    views, before = [storage[:500], storage[500:].view(50, 10)], storage.clone()
    gradient = torch.ones(100)
    parked = Parked(views, discard=[gradient])
    for _ in range(2):
        assert parked.nbytes == 4400
        parked.park()
        parked.park()  # a second call changes nothing
        assert storage.untyped_storage().nbytes() == gradient.untyped_storage().nbytes() == 0
        parked.restore()
        parked.restore()
        assert torch.equal(torch.cat([views[0], views[1].reshape(-1)]), before)
        assert torch.equal(gradient, torch.zeros(100))
        gradient.fill_(1)
        storage.mul_(2)
        before = storage.clone()
