"""Memory that trainer and engine of one device share: buffers that another process maps, and tensors parked on the host while the other works."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass
class SharedBuffer:
    """uint8 memory of a device that another process on it can map.

    `handle` and, where the memory is a file, `descriptor` are what the other process needs (`Platform.attach`). Whoever made it keeps it alive until every
    process that attached has closed its own.
    """

    tensor: torch.Tensor
    handle: bytes = b""
    descriptor: int | None = None
    release: Callable[[], None] | None = None

    def close(self) -> None:
        """Give the memory (or, attached, the mapping) back; views of `tensor` are invalid after it."""
        del self.tensor
        if self.release is not None:
            self.release()


class Parked:
    """Device tensors whose memory is given back while they are not needed; every view of them is whole again after `restore`.

    Works on storages, so it does not matter how many tensors look into one. Storages listed in `discard` are not copied: their contents are zero after
    `restore` (gradient buffers between two steps).
    """

    def __init__(self, tensors: Iterable[torch.Tensor], discard: Iterable[torch.Tensor] = (), *, pin: bool = False):
        self._kept = unique_storages(tensors)
        dropped = unique_storages(discard)
        self._dropped = {key: storage for key, storage in dropped.items() if key not in self._kept}
        self._pin = pin
        self._host: dict[int, torch.Tensor] = {}
        self._sizes: dict[int, int] = {}

    @property
    def parked(self) -> bool:
        return bool(self._sizes)

    @property
    def nbytes(self) -> int:
        """Bytes that parking gives back."""
        return sum(self._sizes.values()) or sum(storage.nbytes() for storage in [*self._kept.values(), *self._dropped.values()])

    def park(self) -> None:
        """Copy to the host and free the device's memory. A second call does nothing. The caller synchronizes the device before and empties its cache after."""
        import torch

        if self.parked:
            return
        for key, storage in self._kept.items():
            source = as_bytes(storage)
            host = self._host.get(key)
            if host is None:
                host = self._host[key] = torch.empty(source.numel(), dtype=torch.uint8, pin_memory=self._pin)
            host.copy_(source)
        for key, storage in [*self._kept.items(), *self._dropped.items()]:
            self._sizes[key] = storage.nbytes()
            storage.resize_(0)

    def restore(self) -> None:
        """Bring everything back. Without a park before it, it does nothing."""
        for key, storage in [*self._kept.items(), *self._dropped.items()]:
            if key in self._sizes:
                storage.resize_(self._sizes.pop(key))
                target = as_bytes(storage)
                if key in self._host:
                    target.copy_(self._host[key])
                else:
                    target.zero_()


def unique_storages(tensors: Iterable[torch.Tensor]) -> dict[int, Any]:
    """Storages by identity, empty ones left out."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage._cdata: storage for storage in storages if storage.nbytes()}


def as_bytes(storage: Any) -> torch.Tensor:
    """A whole storage as a flat uint8 tensor that shares it."""
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
