"""How messages reach the engine workers. A channel knows addresses and buffers; what is in a message it does not know."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from vime.errors import UserError

if TYPE_CHECKING:
    import torch

    from vime.platforms.base import Platform
    from vime.weights.connection import Connection
    from vime.weights.plan import Message

MODULES = {
    "ipc": "vime.weights.transports.ipc",
    "broadcast": "vime.weights.transports.broadcast",
    "p2p": "vime.weights.transports.broadcast",
    "disk": "vime.weights.transports.disk",
}
RELAY = "vime.weights.transports.relay"  # ipc where memory of one card reaches only the processes on it


class SendChannel(Protocol):
    """The sending end, in one trainer rank that owns something. Every wait ends at the connection's deadline with a `RunError`."""

    def open(self) -> Any:
        """Start listening; returns what receivers and other owners need to reach this end."""

    def connect(self, connection: Connection) -> None:
        """Meet every receiver; `connection.endpoints` is complete now."""

    def start(self, version: int, base_version: int | None) -> None:
        """The messages of a version come next."""

    def buffer(self, message: Message) -> torch.Tensor:
        """uint8 memory for one message, free to be written."""

    def put(self, message: Message, nbytes: int, receiver: int | None) -> None:
        """Hand the message in the last buffer on, to one receiver or to all."""

    def relay(self, message: Message) -> None:
        """Hand on a message that another rank owns (`Connection.relayed` only)."""

    def close(self) -> None:
        """Release everything; never raises for a peer that is gone."""


class ReceiveChannel(Protocol):
    """The receiving end, in one engine worker."""

    def connect(self) -> None:
        """Meet every owner."""

    def start(self, version: int, base_version: int | None) -> None:
        """The messages of a version come next. Raises `RunError` where that version is not to be had."""

    def get(self, message: Message) -> torch.Tensor:
        """The next message's bytes, uint8; valid until `release`."""

    def release(self, message: Message) -> None:
        """Its memory may be written again."""

    def close(self) -> None:
        """Release everything; never raises for a peer that is gone."""


def send_channel(connection: Connection, owner: int, platform: Platform) -> SendChannel:
    return _module(connection).Sender(connection, owner, platform)


def receive_channel(connection: Connection, receiver: int, platform: Platform) -> ReceiveChannel:
    return _module(connection).Receiver(connection, receiver, platform)


def choose(transport: str, mode: str, platform: Platform) -> str:
    """The transport of a run: `auto` is ipc when colocated, broadcast when not. Raises `UserError` for one the platform lacks."""
    name = transport if transport != "auto" else ("ipc" if mode == "colocate" else "broadcast")
    if name not in platform.weight_transports:
        raise UserError(f"weights.transport: {name!r} is not available on {platform.name} (have {', '.join(platform.weight_transports)}). Choose one of these.")
    return name


def _module(connection: Connection) -> Any:
    return importlib.import_module(RELAY if connection.relayed else MODULES[connection.transport])
