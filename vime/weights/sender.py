"""The sending side of weight sync, owned by a trainer rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime.errors import RunError
from vime.weights import encodings
from vime.weights.connection import Connection
from vime.weights.plan import STAGE, Box, Unit, intersection
from vime.weights.transports import SendChannel, send_channel

if TYPE_CHECKING:
    import torch

    from vime.platforms.base import Platform


@dataclass(frozen=True)
class Sent:
    """What one rank sent: the payload's bytes and the digest of every unit by its key, cast to the engines' dtype."""

    version: int
    nbytes: int
    digests: dict[str, str]


class WeightSender:
    """Sends the shards this rank owns; nothing is gathered.

    `shards()` yields this rank's shards (`weights/exporter.py`); those whose owner is another rank are replicas and are skipped.
    """

    def __init__(self, platform: Platform, rank: int, shards: Callable[[], Iterable[Any]]):
        self.platform, self.rank, self.shards = platform, rank, shards
        self.connection: Connection | None = None
        self.channel: SendChannel | None = None
        self.snapshots: dict[int, dict[str, torch.Tensor]] = {}  # version → what was sent of it, for deltas

    def manifest(self) -> list[Unit]:
        """The units this rank owns."""
        owned = [shard for shard in self.shards() if shard.owner_rank == self.rank]
        return [
            Unit(shard.hf_name, tuple(shard.global_shape), box_of(shard.slice, shard.global_shape), self.rank, getattr(shard, "float32", False))
            for shard in owned
        ]

    def open(self, connection: Connection) -> Any:
        """Build the channel of a connection if this rank sends anything over it; returns the channel's endpoint."""
        self.close()
        if self.rank not in connection.senders:
            return None
        self.channel = send_channel(connection, self.rank, self.platform)
        return self.channel.open()

    def connect(self, connection: Connection) -> None:
        """Meet the receivers; `connection` carries every owner's endpoint now."""
        self.connection = connection
        self.snapshots.clear()
        if self.channel is not None:
            self.channel.connect(connection)

    def send(self, version: int, base_version: int | None = None) -> Sent:
        """Send every unit of this rank, or only what changed since `base_version`. Raises `RunError` when that base was not the last one the engines took.

        After a failure the connection is closed, so that no receiver waits for this end.
        """
        if self.channel is None or self.connection is None:
            return Sent(version, 0, {})
        try:
            return self._send(self.connection, self.channel, version, base_version)
        except BaseException:
            self.close()
            raise

    def _send(self, connection: Connection, channel: SendChannel, version: int, base_version: int | None) -> Sent:
        import torch

        base = self._base(base_version)
        channel.start(version, base_version)
        tensors = Tensors(shard for shard in self.shards() if shard.owner_rank == self.rank)
        dtype, nbytes, digests = getattr(torch, connection.dtype), 0, {}
        for _, receiver, message in connection.steps(self.rank):
            if message.owner != self.rank:
                channel.relay(message)
                continue
            packed = encodings.write(message, tensors.of, channel.buffer(message), dtype, self.platform.tensor_digest, base)
            channel.put(message, packed.nbytes, receiver)
            nbytes += packed.nbytes
            digests.update(packed.digests)
        if connection.keep_base:
            self._snapshot(connection, version, tensors, dtype)
        return Sent(version, nbytes, digests)

    def close(self) -> None:
        """Leave the connection; the next sync needs a new one."""
        if self.channel is not None:
            self.channel.close()
        self.channel = self.connection = None
        self.snapshots.clear()

    def _base(self, base_version: int | None) -> dict[str, torch.Tensor] | None:
        if base_version is None:
            return None
        if base_version not in self.snapshots:
            have = ", ".join(map(str, sorted(self.snapshots))) or "none"
            raise RunError(STAGE, f"trainer rank {self.rank} has no copy of version {base_version} to make a delta against (it has {have})")
        self.snapshots = {base_version: self.snapshots[base_version]}  # older ones were replaced by it
        return self.snapshots[base_version]

    def _snapshot(self, connection: Connection, version: int, tensors: Tensors, dtype: torch.dtype) -> None:
        units = {unit.key: unit for _, _, message in connection.outgoing(self.rank) for unit in message.units}
        self.snapshots[version] = {key: tensors.of(unit).to(encodings.wire_dtype(unit, dtype), copy=True).contiguous() for key, unit in units.items()}


class Tensors:
    """This rank's shards by name, and any box of them as a view."""

    def __init__(self, shards: Iterable[Any]):
        self.by_name: dict[str, list[tuple[Box, torch.Tensor]]] = {}
        for shard in shards:
            self.by_name.setdefault(shard.hf_name, []).append((box_of(shard.slice, shard.global_shape), shard.tensor))

    def of(self, unit: Unit) -> torch.Tensor:
        for box, tensor in self.by_name.get(unit.name, []):
            if intersection(box, unit.box) == unit.box or not unit.box:
                return tensor.detach()[tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(unit.box, box, strict=True))]
        raise RunError(STAGE, f"{unit.key} is not among this rank's shards: the model's layout changed after the connection was made")


def box_of(slices: Iterable[slice], shape: Iterable[int]) -> Box:
    """(start, stop) of each dimension."""
    return tuple(part.indices(extent)[:2] for part, extent in zip(slices, shape, strict=True))


class SenderMixin:
    """The calls that the session makes on a trainer actor; the actor sets `weight_sender` in its `start`, and `draft_sender` where its model has draft layers.

    `draft`: about the tensors of the draft model, which has connections and transactions of its own.
    """

    weight_sender: WeightSender
    draft_sender: WeightSender | None = None

    def _sender(self, draft: bool) -> WeightSender:
        sender = self.draft_sender if draft else self.weight_sender
        if sender is None:
            raise RunError(STAGE, "this trainer holds no draft layers: the run was started without rollout.speculative or train.mtp")
        return sender

    def weights_manifest(self, draft: bool = False) -> list[Unit]:
        return self._sender(draft).manifest()

    def weights_open(self, connection: Connection) -> Any:
        return self._sender(connection.draft).open(connection)

    def weights_connect(self, connection: Connection) -> None:
        self._sender(connection.draft).connect(connection)

    def weights_send(self, version: int, base_version: int | None = None, draft: bool = False) -> Sent:
        return self._sender(draft).send(version, base_version)

    def weights_close(self) -> None:
        for sender in (self.weight_sender, self.draft_sender):
            if sender is not None:
                sender.close()
