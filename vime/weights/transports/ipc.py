"""Shared memory on one host: each owner has a buffer of two slots that receivers map (a memory file on CPU, device memory elsewhere: `Platform.share`).

A Unix socket in the abstract namespace carries the buffer's handle or descriptor, a token for every filled slot, and one back for every slot that is free
again; a dead peer closes it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.errors import RunError
from vime.weights.encodings import capacity
from vime.weights.plan import STAGE, Message, PeerGoneError

if TYPE_CHECKING:
    import torch

    from vime.platforms.base import Platform
    from vime.platforms.memory import SharedBuffer
    from vime.weights.connection import Connection

PAGE = mmap.PAGESIZE
TOKEN = struct.Struct("<qq")  # (slot, bytes of the message); back: (slot, 0)
HELLO = struct.Struct("<qqq")  # (slots, bytes of a slot, bytes of the handle that follows), with the descriptor where there is one


class Sender:
    """The owner's end."""

    def __init__(self, connection: Connection, owner: int, platform: Platform):
        import torch

        self.connection, self.owner, self.platform = connection, owner, platform
        messages = connection.sent_by(owner)
        itemsize = getattr(torch, connection.dtype).itemsize
        largest = max(capacity(message, itemsize) for message in messages)
        self.slot_bytes = -(-largest // PAGE) * PAGE
        self.slots = min(2, len(messages))
        self.peers: list[socket.socket] = []
        self.listeners: list[socket.socket] = []  # one, once it is open; so for the memory
        self.memories: list[SharedBuffer] = []
        self.in_use = [0] * self.slots  # receivers that have not given the slot back
        self.slot = self.slots - 1

    def open(self) -> dict[str, Any]:
        self.memory = self.platform.share(self.slots * self.slot_bytes)
        self.memories.append(self.memory)
        name = f"vime-{uuid.uuid4().hex}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listeners.append(self.listener)
        self.listener.bind("\0" + name)
        self.listener.listen(self.connection.served_by(self.owner))
        self.listener.settimeout(self.connection.timeout_s)
        return {"socket": name, "boot": boot_id(), "device": self.platform.device_identity()}

    def connect(self, connection: Connection) -> None:
        for _ in range(connection.served_by(self.owner)):
            peer = accept(self.listener, connection.timeout_s)
            descriptors = [] if self.memory.descriptor is None else [self.memory.descriptor]
            socket.send_fds(peer, [HELLO.pack(self.slots, self.slot_bytes, len(self.memory.handle))], descriptors)
            write(peer, self.memory.handle)
            self.peers.append(peer)

    def start(self, version: int, base_version: int | None) -> None:
        return None

    def buffer(self, message: Message) -> torch.Tensor:
        self.slot = (self.slot + 1) % self.slots
        self.drain(self.slot)
        return self.memory.tensor[self.slot * self.slot_bytes : (self.slot + 1) * self.slot_bytes]

    def drain(self, slot: int) -> None:
        """Wait until every receiver has given `slot` back."""
        while self.in_use[slot]:
            for index, peer in enumerate(self.peers):
                returned, _ = TOKEN.unpack(read(peer, TOKEN.size, f"engine worker {index} to give a weight buffer back"))
                self.in_use[returned] -= 1

    def put(self, message: Message, nbytes: int, receiver: int | None) -> None:
        self.platform.synchronize()  # the token says the bytes are there, so they must be
        self.in_use[self.slot] = len(self.peers)
        for peer in self.peers:
            write(peer, TOKEN.pack(self.slot, nbytes))

    def close(self) -> None:
        """Also of a channel that could not be opened, whatever of it there is."""
        for end in [*self.peers, *self.listeners]:
            end.close()
        for memory in self.memories:
            memory.close()
        self.memories.clear()


class Receiver:
    """The engine worker's end."""

    def __init__(self, connection: Connection, receiver: int, platform: Platform):
        self.connection, self.receiver, self.platform = connection, receiver, platform
        self.ends: dict[int, tuple[socket.socket, SharedBuffer, int]] = {}
        self.slot: dict[int, int] = {}

    def connect(self) -> None:
        for owner in self.connection.sources(self.receiver):
            endpoint = self.connection.endpoints[owner]
            if endpoint["boot"] != boot_id():
                raise RunError(STAGE, f"trainer rank {owner} runs on another host: weights.transport ipc needs one host; use broadcast")
            if endpoint["device"] != self.platform.device_identity():
                raise RunError(
                    STAGE,
                    f"trainer rank {owner} shares memory of {endpoint['device'].rpartition('/')[2]}, this engine worker is on "
                    f"{self.platform.device_identity().rpartition('/')[2]}: weights.transport ipc needs one device; use broadcast",
                )
            end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            end.settimeout(self.connection.timeout_s)
            end.connect("\0" + endpoint["socket"])
            self.ends[owner] = (end, *map_memory(end, owner, self.platform))

    def start(self, version: int, base_version: int | None) -> None:
        return None

    def get(self, message: Message) -> torch.Tensor:
        source = self.connection.source(message, self.receiver)
        end, memory, slot_bytes = self.ends[source]
        slot, nbytes = TOKEN.unpack(read(end, TOKEN.size, f"trainer rank {source} to fill a weight buffer"))
        self.slot[source] = slot
        return memory.tensor[slot * slot_bytes : slot * slot_bytes + nbytes]

    def release(self, message: Message) -> None:
        self.platform.synchronize()  # what was queued to read the slot has read it
        source = self.connection.source(message, self.receiver)
        write(self.ends[source][0], TOKEN.pack(self.slot[source], 0))

    def close(self) -> None:
        for end, memory, _ in self.ends.values():
            end.close()
            memory.close()
        self.ends.clear()


def map_memory(end: socket.socket, owner: int, platform: Platform) -> tuple[SharedBuffer, int]:
    """The owner's buffer, mapped here, and the bytes of one slot."""
    what = f"trainer rank {owner} to hand over its weight buffers"
    with deadline(what):
        data, descriptors, _, _ = socket.recv_fds(end, HELLO.size, 1)
    if len(data) != HELLO.size:
        raise PeerGoneError(STAGE, f"trainer rank {owner} closed the connection while handing over its weight buffers")
    slots, slot_bytes, size = HELLO.unpack(data)
    return platform.attach(read(end, size, what), descriptors[0] if descriptors else None, slots * slot_bytes), slot_bytes


def accept(listener: socket.socket, timeout_s: float) -> socket.socket:
    """The next peer that runs as this user."""
    until = time.monotonic() + timeout_s
    while True:
        with deadline("an engine worker to connect"):
            listener.settimeout(max(0.01, until - time.monotonic()))
            peer, _ = listener.accept()
        peer.settimeout(timeout_s)
        _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if uid == os.getuid():
            return peer
        peer.close()


def read(end: socket.socket, size: int, what: str) -> bytes:
    """Exactly `size` bytes. Raises `RunError` at the deadline or when the peer is gone."""
    data = b""
    while len(data) < size:
        with deadline(what):
            part = end.recv(size - len(data))
        if not part:
            raise PeerGoneError(STAGE, f"waited for {what}, but the other end is gone")
        data += part
    return data


def write(end: socket.socket, data: bytes) -> None:
    with deadline("a peer to take a token"):
        end.sendall(data)


@contextlib.contextmanager
def deadline(what: str) -> Any:
    """Turns a socket's time-out or reset into a `RunError` that says what was waited for."""
    try:
        yield
    except TimeoutError:
        raise RunError(STAGE, f"waited too long for {what} (weights.timeout_s)") from None
    except ConnectionError:
        raise PeerGoneError(STAGE, f"waited for {what}, but the other end is gone") from None
    except OSError as error:
        raise PeerGoneError(STAGE, f"waited for {what}: {error.strerror or error}") from error


def boot_id() -> str:
    """Identifies the running kernel and network namespace: equal exactly where abstract sockets reach each other."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{Path('/proc/self/ns/net').stat().st_ino}"
