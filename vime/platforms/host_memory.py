"""Anonymous memory files: buffers in host memory that another process maps by descriptor.

The memory belongs to no directory: the kernel frees it when the last process that maps it ends, however it ends, and it is not bounded by the size of
/dev/shm.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import warnings

from vime.platforms.memory import SharedBuffer


def share(nbytes: int) -> SharedBuffer:
    """A new buffer of `nbytes`, its pages already there."""
    import torch

    descriptor = os.memfd_create("vime-weights", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, nbytes)
    memory = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def release() -> None:
        with contextlib.suppress(BufferError):  # a view that still lives keeps the mapping until it dies
            memory.close()
        os.close(descriptor)

    return SharedBuffer(torch.frombuffer(memory, dtype=torch.uint8), b"", descriptor, release)


def attach(descriptor: int, nbytes: int) -> SharedBuffer:
    """Another process' buffer, read-only. Takes the descriptor over."""
    import torch

    memory = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
    os.close(descriptor)

    def release() -> None:
        with contextlib.suppress(BufferError):
            memory.close()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the memory is read-only: nobody writes into it
        return SharedBuffer(torch.frombuffer(memory, dtype=torch.uint8), release=release)
