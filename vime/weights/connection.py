"""The description that joins senders and receivers: made by the session, sent to every trainer rank and every engine worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vime.weights.plan import Bucket, Message

Step = tuple[int, int | None, Message]  # (bucket, receiver or None for all, what is sent)


@dataclass(frozen=True)
class Connection:
    """Who sends what to whom, and how.

    `buckets`: one list for all receivers; under p2p one list per receiver. `receivers`: (engine index, worker rank) in the order both sides number them.
    `endpoints`: what each owner's channel answered when it opened (addresses), by owner.
    """

    id: str
    transport: str
    platform: str
    dtype: str  # of the engines' weights, and on the wire
    keep_base: bool  # both sides keep what was sent last, for deltas
    buckets: tuple[tuple[Bucket, ...], ...]
    receivers: tuple[tuple[int, int], ...]
    timeout_s: float
    directory: str | None = None
    draft: bool = False  # it carries the engines' draft model, not the model itself
    host: str = "127.0.0.1"  # the interface that listening sockets bind
    endpoints: Mapping[int, Any] = field(default_factory=dict)
    relayed: bool = False  # ipc over several cards: every trainer rank passes everything to the one receiver beside it

    @property
    def routed(self) -> bool:
        """Whether each receiver has its own messages."""
        return self.transport == "p2p"

    @property
    def owners(self) -> list[int]:
        """Trainer ranks that send anything, ascending."""
        return sorted({message.owner for plan in self.buckets for bucket in plan for message in bucket.messages})

    @property
    def senders(self) -> list[int]:
        """Trainer ranks with a channel, ascending: the owners, or every rank that stands beside a receiver."""
        return list(range(len(self.receivers))) if self.relayed else self.owners

    def served_by(self, rank: int) -> int:
        """How many receivers connect to a sender."""
        return 1 if self.relayed else len(self.receivers)

    def sources(self, receiver: int) -> list[int]:
        """The senders that a receiver connects to."""
        return [receiver] if self.relayed else self.owners

    def source(self, message: Message, receiver: int) -> int:
        """The sender that hands `message` to a receiver."""
        return receiver if self.relayed else message.owner

    def steps(self, rank: int) -> list[Step]:
        """What a sender does, in order: its own messages, and when relayed the others' too."""
        if not self.relayed:
            return self.outgoing(rank)
        return [(index, None, message) for index, bucket in enumerate(self.buckets[0]) for message in bucket.messages]

    def sent_by(self, rank: int) -> list[Message]:
        """The messages that go through a sender's buffers."""
        return [message for _, _, message in self.steps(rank)]

    def outgoing(self, owner: int) -> list[Step]:
        """An owner's messages in the order it sends them: by bucket, then by receiver. Receivers take theirs in the same order, so nobody waits in a circle."""
        longest = max(len(plan) for plan in self.buckets)
        steps: list[Step] = []
        for index in range(longest):
            for receiver, plan in enumerate(self.buckets):
                messages = plan[index].messages if index < len(plan) else ()
                steps += [(index, receiver if self.routed else None, message) for message in messages if message.owner == owner]
        return steps

    def incoming(self, receiver: int) -> tuple[Bucket, ...]:
        return self.buckets[receiver if self.routed else 0]
