"""Shared device memory with several cards: memory of one card reaches only the engine worker on it.

So every trainer rank hands over everything to the worker beside it: an owner's message is broadcast among the trainer ranks first (their own process group,
made by the platform), and each rank puts it into its own shared slot (`ipc.py`). Rank r sits beside receiver r (`loop/placement.py`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from vime.errors import RunError
from vime.weights.plan import STAGE, Message
from vime.weights.transports import ipc
from vime.weights.transports.broadcast import Group, join_store, listening_store, node_address, parts, take_message

if TYPE_CHECKING:
    from vime.platforms.base import Platform
    from vime.weights.connection import Connection


class Sender(ipc.Sender):
    """A trainer rank's end: sends what it owns, passes on what others own."""

    def __init__(self, connection: Connection, owner: int, platform: Platform):
        import torch

        super().__init__(connection, owner, platform)
        self.itemsize = getattr(torch, connection.dtype).itemsize
        self.store: Any = None
        self.group: Group | None = None

    def open(self) -> dict[str, Any]:
        endpoint = super().open()
        if self.owner == self.connection.senders[0]:
            host = self.connection.host or node_address()
            self.store = listening_store(host, 0, self.connection.timeout_s)
            endpoint |= {"host": host, "port": self.store.port}
        return endpoint

    def connect(self, connection: Connection) -> None:
        from torch.distributed import PrefixStore

        self.store = self.store or join_store(connection)
        meeting, timeout = PrefixStore(f"{connection.id}/relay", self.store), timedelta(seconds=connection.timeout_s)
        try:
            self.group = Group(self.platform.new_process_group(meeting, self.owner, len(connection.senders), timeout))
        except RuntimeError as error:
            raise RunError(STAGE, f"trainers could not form a {self.platform.collective_backend} group: {str(error).splitlines()[0]}") from error
        super().connect(connection)

    def start(self, version: int, base_version: int | None) -> None:
        self.partial = base_version is not None

    def put(self, message: Message, nbytes: int, receiver: int | None) -> None:
        assert self.group is not None
        slot = self.slot_bytes * self.slot
        for part in parts(message, nbytes, self.partial):
            self.group.broadcast(self.memory.tensor[slot + part.start : slot + part.stop], root=message.owner)
        super().put(message, nbytes, receiver)

    def relay(self, message: Message) -> None:
        """Take another rank's message and hand it on."""
        group, buffer = self.group, self.buffer(message)
        assert group is not None
        nbytes = take_message(lambda tensor: group.broadcast(tensor, root=message.owner), message, buffer, self.itemsize, self.partial)
        super().put(message, nbytes, None)

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
        self.group = self.store = None
        super().close()


class Receiver(ipc.Receiver):
    """The worker's end: everything comes from the trainer rank beside it."""
