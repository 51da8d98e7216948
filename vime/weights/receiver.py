"""The receiving side of weight sync, in every worker process of an engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from vime.errors import RunError
from vime.platforms import registry
from vime.weights import encodings
from vime.weights.connection import Connection
from vime.weights.plan import STAGE, Box, Unit
from vime.weights.transports import ReceiveChannel, receive_channel

if TYPE_CHECKING:
    import torch

Named = tuple[str, "torch.Tensor"]


class Loader(Protocol):
    """How tensors get into the engine's model."""

    def load(self, tensors: Sequence[Named]) -> None:
        """Load whole Hugging Face tensors; may keep references to them."""

    def settle(self, buffer: torch.Tensor) -> None:
        """Copy whatever is still kept of `buffer` (uint8): it is written again after this."""


@dataclass
class Received:
    """What one worker received: bytes, and the digest of every unit by its key."""

    version: int
    nbytes: int = 0
    digests: dict[str, str] = field(default_factory=dict)


class WeightReceiver:
    """Takes messages, checks every digest, and hands whole tensors to a loader, bucket by bucket."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.channel: ReceiveChannel | None = None
        self.base: tuple[int, dict[str, torch.Tensor]] | None = None  # (version, unit key → unit): what the engine holds, kept for deltas
        self.candidate: tuple[int, dict[str, torch.Tensor]] | None = None  # the same of the version being received
        self.report = Received(-1)
        self._measuring: dict[str, Box] | None = None
        self.layout: dict[str, Box] | None = None  # what this worker reads of each tensor, measured once

    def layout_to_measure(self, workers: int) -> dict[str, Box] | None:
        """A dict for the loader to fill: only for peer-to-peer, once, and where `workers` share a model. None: nothing to measure."""
        if self.connection is None or not self.connection.routed or workers == 1 or self.layout is not None:
            return None
        self._measuring = {}
        return self._measuring

    def connect(self, connection: Connection, engine: int, rank: int) -> None:
        self.close()
        self.connection, self.index = connection, connection.receivers.index((engine, rank))
        self.platform = registry.get(connection.platform)
        self.channel = receive_channel(connection, self.index, self.platform)
        self.channel.connect()

    def receive(self, version: int, base_version: int | None, loader: Loader) -> Received:
        """Receive and load one version. Raises `RunError` for a wrong base, a broken connection, or bytes that differ from those sent (naming the tensor).

        After a failure the connection is closed, so that nobody waits for this end.
        """
        if self.channel is None or self.connection is None:
            raise RunError(STAGE, "this engine worker is not connected to the trainers")
        try:
            self._receive(self.connection, self.channel, version, base_version, loader)
        except BaseException:
            self.abort()
            raise
        return self.report

    def _receive(self, connection: Connection, channel: ReceiveChannel, version: int, base_version: int | None, loader: Loader) -> None:
        import torch

        dtype = getattr(torch, connection.dtype)
        base = self._base(base_version)
        self.report, self.candidate = Received(version), (version, {}) if connection.keep_base else None
        whole = Assembler(self.units())
        channel.start(version, base_version)
        for bucket in connection.incoming(self.index):
            for message in bucket.messages:
                buffer = channel.get(message)
                units = encodings.read(message, buffer, dtype, self.platform.tensor_digest, base)
                self._keep(units)
                try:
                    loader.load([named for unit, tensor, _ in units for named in whole.add(unit, tensor)])
                finally:  # also where it failed: what is kept of the buffer is read once more when the update is ended, and the buffer is gone by then
                    loader.settle(buffer)
                self.report.nbytes += buffer.numel()
                channel.release(message)

    def commit(self) -> None:
        """The engine holds the received version now: it is the base of the next delta."""
        if self.candidate is not None:
            self.base, self.candidate = self.candidate, None
        if self._measuring is not None:
            self.layout, self._measuring = self._measuring, None

    def abort(self) -> None:
        """The engine's weights are undefined: no delta may be applied to them, and messages may be under way, so the connection ends too."""
        self.base = self.candidate = self._measuring = None
        self.close()

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.channel = self.connection = self.base = self.candidate = None

    def units(self) -> list[Unit]:
        """Everything this worker receives."""
        if self.connection is None:
            return []
        return [unit for bucket in self.connection.incoming(self.index) for message in bucket.messages for unit in message.units]

    def _base(self, base_version: int | None) -> dict[str, torch.Tensor] | None:
        if base_version is None:
            return None
        if self.base is None or self.base[0] != base_version:
            held = "none" if self.base is None else f"version {self.base[0]}"
            raise RunError(STAGE, f"a delta against version {base_version} cannot be applied: this engine holds {held}. It needs a full sync.")
        return self.base[1]

    def _keep(self, units: Iterable[tuple[Unit, torch.Tensor, str]]) -> None:
        for unit, tensor, found in units:
            self.report.digests[unit.key] = found
            if self.candidate is not None:
                self.candidate[1][unit.key] = tensor.clone()


class Assembler:
    """Joins the units of each tensor; a unit that is the whole tensor passes through untouched."""

    def __init__(self, expected: Iterable[Unit]):
        self.missing: dict[str, int] = {}
        for unit in expected:
            self.missing[unit.name] = self.missing.get(unit.name, 0) + unit.numel
        self.expected = dict(self.missing)
        self.partial: dict[str, torch.Tensor] = {}

    def add(self, unit: Unit, tensor: torch.Tensor) -> list[Named]:
        """The whole tensor once its last unit arrived, else nothing.

        Under p2p only this worker's part of it arrives; the rest is NaN, so that a loader which reads it after all is seen at once.
        """
        self.missing[unit.name] -= unit.numel
        if unit.whole:
            return [(unit.name, tensor)]
        if unit.name not in self.partial:
            complete = self.expected[unit.name] == math.prod(unit.shape)
            self.partial[unit.name] = tensor.new_empty(unit.shape) if complete else tensor.new_full(unit.shape, math.nan)
        self.partial[unit.name][unit.slices] = tensor
        return [] if self.missing[unit.name] else [(unit.name, self.partial.pop(unit.name))]
