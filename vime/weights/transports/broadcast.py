"""Collectives outside the trainer's world: one process group per owner, made by the platform (gloo, nccl, hccl); rank 0 is the owner, the receivers follow.

`broadcast` sends each message once to all receivers; `p2p` sends each receiver only what its layout needs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from vime.errors import RunError, UserError
from vime.weights.encodings import capacity, header_bytes, read_header, total_bytes
from vime.weights.plan import STAGE, Message, PeerGoneError

if TYPE_CHECKING:
    import torch

    from vime.platforms.base import Platform
    from vime.weights.connection import Connection


class Sender:
    """The owner's end. The lowest owner also hosts the store that everybody meets at."""

    def __init__(self, connection: Connection, owner: int, platform: Platform):
        import torch

        self.connection, self.owner, self.platform = connection, owner, platform
        self.itemsize = getattr(torch, connection.dtype).itemsize
        largest = max(capacity(message, self.itemsize) for _, _, message in connection.outgoing(owner))
        self.bytes = torch.empty(largest, dtype=torch.uint8, device=platform.device(0))
        self.store: Any = None
        self.group: Group | None = None

    def open(self) -> dict[str, Any] | None:
        if self.owner != self.connection.owners[0]:
            return None
        host = self.connection.host or node_address()
        self.store = listening_store(host, 0, self.connection.timeout_s)
        return {"host": host, "port": self.store.port}

    def connect(self, connection: Connection) -> None:
        self.store = self.store or join_store(connection)
        self.group = group_of(connection, self.platform, self.store, self.owner, 0)

    def start(self, version: int, base_version: int | None) -> None:
        self.partial = base_version is not None

    def buffer(self, message: Message) -> torch.Tensor:
        return self.bytes

    def put(self, message: Message, nbytes: int, receiver: int | None) -> None:
        assert self.group is not None
        for part in parts(message, nbytes, self.partial):
            if receiver is None:
                self.group.broadcast(self.bytes[part])
            else:
                self.group.send(self.bytes[part], receiver + 1)

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
        self.group = self.store = None


class Receiver:
    """The engine worker's end."""

    def __init__(self, connection: Connection, receiver: int, platform: Platform):
        import torch

        self.connection, self.receiver, self.platform = connection, receiver, platform
        self.itemsize = getattr(torch, connection.dtype).itemsize
        messages = [message for bucket in connection.incoming(receiver) for message in bucket.messages]
        self.bytes = torch.empty(max(capacity(message, self.itemsize) for message in messages), dtype=torch.uint8, device=platform.device(0))
        self.groups: dict[int, Group] = {}

    def connect(self) -> None:
        store = join_store(self.connection)
        for owner in self.connection.owners:
            self.groups[owner] = group_of(self.connection, self.platform, store, owner, self.receiver + 1)

    def start(self, version: int, base_version: int | None) -> None:
        self.partial = base_version is not None

    def get(self, message: Message) -> torch.Tensor:
        """A delta's size stands in its header, so the header comes first; a full message has one size."""
        group = self.groups[message.owner]
        nbytes = take_message(group.receive if self.connection.routed else group.broadcast, message, self.bytes, self.itemsize, self.partial)
        return self.bytes[:nbytes]

    def release(self, message: Message) -> None:
        return None

    def close(self) -> None:
        for group in self.groups.values():
            group.close()
        self.groups.clear()


def take_message(take: Callable[[torch.Tensor], None], message: Message, buffer: torch.Tensor, itemsize: int, partial: bool) -> int:
    """Fill the front of `buffer` with the next message by `take`, whose pieces are those of `parts`. Returns its bytes."""
    nbytes = header_bytes(message) if partial else capacity(message, itemsize)
    take(buffer[:nbytes])
    if partial:
        counts, _ = read_header(message, buffer)
        rest = slice(nbytes, total_bytes(message, counts, itemsize))
        if rest.stop > rest.start:
            take(buffer[rest])
        nbytes = rest.stop
    return nbytes


def parts(message: Message, nbytes: int, partial: bool) -> list[slice]:
    """The pieces a message is sent in; the receiver must know the size of each beforehand."""
    head = header_bytes(message)
    if not partial:
        return [slice(0, nbytes)]
    return [slice(0, head)] + ([slice(head, nbytes)] if nbytes > head else [])


class Group:
    """A process group that can be closed: gloo closes its connections, and so tells its peers, only when the object itself is gone."""

    def __init__(self, group: Any):
        self._group = group

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> None:
        """From rank `root` to everybody."""
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._wait("broadcast", [tensor], options)

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        self._wait("send", [tensor], rank, 0)

    def receive(self, tensor: torch.Tensor) -> None:
        """From rank 0."""
        self._wait("recv", [tensor], 0, 0)

    def close(self) -> None:
        self._group = None

    def _wait(self, method: str, *args: Any) -> None:
        try:
            getattr(self._group, method)(*args).wait()
        except RuntimeError as error:
            raise PeerGoneError(STAGE, f"the connection between trainers and engines broke: {str(error).splitlines()[0]}") from None


def group_of(connection: Connection, platform: Platform, store: Any, owner: int, rank: int) -> Group:
    """The process group of one owner and all receivers."""
    from torch.distributed import PrefixStore

    try:
        meeting, size = PrefixStore(f"{connection.id}/{owner}", store), 1 + len(connection.receivers)
        return Group(platform.new_process_group(meeting, rank, size, timedelta(seconds=connection.timeout_s)))
    except RuntimeError as error:
        raise RunError(STAGE, f"trainers and engines could not form a {platform.collective_backend} group: {str(error).splitlines()[0]}") from error


def listening_store(host: str, port: int, timeout_s: float) -> Any:
    """A `TCPStore` that listens on `host` only; `port` 0 takes a free one. Raises `UserError` when the port is in use."""
    from torch.distributed import TCPStore

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"weights: cannot listen on {host}:{port}: {error.strerror}. Choose another port, or 0 for a free one.") from error
    listener.listen(1024)
    return TCPStore(host, listener.getsockname()[1], None, True, timedelta(seconds=timeout_s), False, False, listener.detach())


def join_store(connection: Connection) -> Any:
    """A client of the store the lowest owner hosts. Raises `RunError` when it cannot be reached."""
    from torch.distributed import TCPStore

    where = connection.endpoints[connection.senders[0]]
    try:
        return TCPStore(where["host"], where["port"], None, False, timedelta(seconds=connection.timeout_s), False)
    except RuntimeError as error:
        raise RunError(STAGE, f"could not reach the weight store at {where['host']}:{where['port']}: {str(error).splitlines()[0]}") from error


def node_address() -> str:
    """This node's address in the cluster (several nodes only)."""
    import ray

    return ray.util.get_node_ip_address()
