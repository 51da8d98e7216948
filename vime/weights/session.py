"""One weight sync after another, seen from the driver: begin → send and receive → compare digests → commit → prove what is held → resume."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from vime.config.tree import Config
from vime.errors import RunError
from vime.platforms.base import Platform
from vime.weights.connection import Connection
from vime.weights.handles import Gather, Handle
from vime.weights.plan import STAGE, PeerGoneError, Unit, buckets, check_coverage, pack, route
from vime.weights.proof import HeldCheck, compare_received, prove_held
from vime.weights.receiver import Received
from vime.weights.sender import Sent
from vime.weights.transports import choose

WAITING, CAUSE_S = "waiting", 5.0
CLEAN_UP_S = 30.0  # a worker that hangs must not hold up the report of what went wrong
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class SyncReport:
    """One sync that every engine committed.

    `bytes`: sent by all trainer ranks together. `seconds`: the whole push; `stages` splits it. `digests`: of every unit as cast to the engines' dtype, by key.
    """

    version: int
    base_version: int | None  # of a delta; None: everything was sent
    transport: str
    bytes: int
    seconds: float
    stages: Mapping[str, float]
    digests: Mapping[str, str]
    held_check: HeldCheck | None = None

    def event(self) -> dict[str, Any]:
        """Fields of the `weight_sync` line in events.jsonl; all digests are folded into one."""
        folded = xxhash.xxh3_128("\n".join(f"{key} {self.digests[key]}" for key in sorted(self.digests)).encode()).hexdigest()
        return {
            "version": self.version,
            "base_version": self.base_version,
            "encoding": "full" if self.base_version is None else "delta",
            "transport": self.transport,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 6),
            "stages": {name: round(value, 6) for name, value in self.stages.items()},
            "tensors": len(self.digests),
            "digest": folded,
            "received": "digest",
            "held": None if self.held_check is None else self.held_check.event(),
        }


@dataclass
class _Watch:
    """Seconds spent in each stage."""

    stages: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.stages[name] = self.stages.get(name, 0.0) + now - self.last
        self.last = now


class WeightSync:
    """Pushes the trainers' weights into the engines. Every engine commits the same version, or none of them resumes.

    `trainers` and `engines` are handles in rank and engine order (`weights/handles.py`). `gather` waits for several calls at once and reports the first
    failure; it defaults to the loop's, for Ray actors. `committed` is called when every engine has committed, before one computes with the new weights.
    A failed push leaves every engine dirty and raises `RunError`; the next push reconnects and sends
    everything.
    """

    def __init__(
        self,
        trainers: Sequence[Handle],
        engines: Sequence[Handle],
        config: Config,
        platform: Platform,
        *,
        gather: Gather | None = None,
        directory: str | None = None,
        committed: Callable[[], None] | None = None,
    ):
        self.trainers, self.engines = list(trainers), list(engines)
        self.config, self.platform = config, platform
        self.transport = choose(config.weights.transport, config.placement.mode, platform)
        self.directory = config.weights.disk_path or directory
        self.dtype = config.rollout.dtype or config.model.dtype
        self.count = 0  # pushes that committed
        self.version: int | None = None  # what all engines hold, None while not all hold the same
        self._connections: tuple[Connection, ...] = ()
        self._layouts: list[list[dict[str, Any] | None]] = []
        self._gather: Gather = gather or _ray_gather()
        self._committed = committed or (lambda: None)

    def push(self, version: int) -> SyncReport:
        """Bring every engine to `version` of the trainers' weights."""
        watch = _Watch()
        try:
            self._connections = self._connections or self._connect()
            watch.lap("connect")
            base = self.version if self._connections[0].keep_base else None
            self.version = None
            digests: dict[str, str] = {}
            nbytes = 0
            for connection in self._connections:
                part, sent = self._transaction(connection, version, base, watch)
                digests, nbytes = digests | part, nbytes + sent
            self._committed()
            held = self._prove(digests)
            watch.lap("held")
            self._engines("resume")
            watch.lap("resume")
        except BaseException:
            self._abort(version)
            raise
        self.version, self.count = version, self.count + 1
        self._replan()
        return SyncReport(version, base, self.transport, nbytes, sum(watch.stages.values()), watch.stages, digests, held)

    def rejoin(self, index: int, engine: Handle) -> None:
        """Replace engine `index` by a restarted one. The next push reconnects everybody and sends everything."""
        self.engines[index] = engine
        self._disconnect()

    def close(self) -> None:
        """Release channels on both sides; workers that are gone do not matter."""
        self._disconnect()

    # ---- one push ---------------------------------------------------------------------------------------------------------------------------------------

    def _transaction(self, connection: Connection, version: int, base: int | None, watch: _Watch) -> tuple[dict[str, str], int]:
        """Begin, transfer and commit of one target; nobody generates before all targets are committed. Returns digests and bytes as `_transfer`."""
        self._engines("begin", version, *target(connection.draft))
        watch.lap("begin")
        result = self._transfer(connection, version, base)
        watch.lap("transfer")
        self._engines("commit", version)
        watch.lap("commit")
        return result

    def _transfer(self, connection: Connection, version: int, base: int | None) -> tuple[dict[str, str], int]:
        """Send and receive at once; returns the digests both sides agree on, and the bytes sent."""
        which = target(connection.draft)
        sending = [trainer.call("weights_send", version, base, *which) for trainer in self.trainers]
        if self.transport == "disk":
            self._complete_on_disk(connection, version, base, self._wait(sending))
        receiving = [engine.call("receive", version, base, *which) for engine in self.engines]
        results = self._wait_for_cause([*receiving, *sending])
        received: list[list[Received]] = results[: len(receiving)]
        sent: list[Sent] = results[len(receiving) :]
        digests = {key: digest for part in sent for key, digest in part.digests.items()}
        for index, reports in enumerate(received):
            for rank, report in enumerate(reports):
                compare_received(connection, index, rank, version, digests, report)
        return digests, sum(part.nbytes for part in sent)

    def _complete_on_disk(self, connection: Connection, version: int, base: int | None, sent: Sequence[Sent]) -> None:
        from vime.weights.transports.disk import mark_complete

        assert connection.directory is not None
        mark_complete(connection.directory, version, base, {key: digest for part in sent for key, digest in part.digests.items()})

    def _prove(self, digests: Mapping[str, str]) -> HeldCheck | None:
        every = self.config.weights.verify_held_every
        if not every or self.count % every:
            return None
        return prove_held(self.trainers, self.engines, self.config, self.dtype, digests, self._wait)

    def _abort(self, version: int) -> None:
        """Every engine becomes dirty and everybody leaves the connection; a worker that is gone cannot answer and need not."""
        self.version = None
        for engine in self.engines:
            self._quietly(engine, "abort", version)
        self._disconnect()

    # ---- connection -------------------------------------------------------------------------------------------------------------------------------------

    def _connect(self) -> tuple[Connection, ...]:
        """One connection to the engines' model, and one to their draft model where it is the trainer's."""
        self._layouts = self._engines("layout")
        drafts = (False, True) if self.config.rollout.speculative.method == "mtp" else (False,)
        return tuple(self._connect_to(draft) for draft in drafts)

    def _connect_to(self, draft: bool) -> Connection:
        """Make the plan from what trainers own and engines need, open the channels, and let both sides meet."""
        units = [unit for part in self._trainers("weights_manifest", *target(draft)) for unit in part]
        if not units:
            raise RunError(STAGE, f"the trainers export no {'draft ' if draft else ''}weights")
        layouts = [[None for _ in workers] for workers in self._layouts] if draft else self._layouts
        directory = f"{self.directory}-draft" if draft and self.directory else self.directory
        connection = make_connection(self.config, self.transport, self.platform, self.dtype, units, layouts, directory, draft=draft)
        if connection.relayed and len(self.trainers) != len(connection.receivers):
            raise RunError(
                STAGE,
                f"weights.transport ipc: {len(self.trainers)} trainer ranks and {len(connection.receivers)} engine workers: every device needs one of each; "
                "use placement.mode colocate with as many of both, or weights.transport broadcast",
            )
        endpoints = dict(enumerate(self._trainers("weights_open", connection)))
        connection = replace(connection, endpoints={rank: endpoints[rank] for rank in connection.senders})
        meeting = [trainer.call("weights_connect", connection) for trainer in self.trainers] + [engine.call("connect", connection) for engine in self.engines]
        self._wait(meeting)
        return connection

    def _replan(self) -> None:
        """Peer-to-peer: the first sync sends everything and shows what each worker of a sharded engine reads; the next connects anew and sends only that."""
        if self._connections[0].routed and self._engines("layout") != self._layouts:
            self._disconnect()

    def _disconnect(self) -> None:
        self._connections, self.version = (), None
        for trainer in self.trainers:
            self._quietly(trainer, "weights_close")
        for engine in self.engines:
            self._quietly(engine, "disconnect")

    def _quietly(self, worker: Handle, method: str, *args: Any) -> None:
        """Clean-up after a failure: what it raises would hide the failure itself."""
        with contextlib.suppress(Exception):
            worker.call(method, *args).result(min(self.config.weights.timeout_s, CLEAN_UP_S), STAGE)

    def _trainers(self, method: str, *args: Any) -> list[Any]:
        return self._wait([trainer.call(method, *args) for trainer in self.trainers])

    def _engines(self, method: str, *args: Any) -> list[Any]:
        return self._wait([engine.call(method, *args) for engine in self.engines])

    def _wait_for_cause(self, pending: Sequence[Any]) -> list[Any]:
        """As `_wait`; when an end only reports that its peer is gone, the error of the one that failed first, if it can be had soon."""
        try:
            return self._wait(pending)
        except PeerGoneError:
            for item in pending:
                try:
                    self._gather([item], CAUSE_S, WAITING)
                except PeerGoneError:
                    continue
                except RunError as cause:
                    if type(cause) is RunError and cause.stage == WAITING:  # not done yet
                        continue
                    cause.stage, cause.args = STAGE, (f"{STAGE}: {cause.message}",)
                    raise cause from None
            raise

    def _wait(self, pending: Sequence[Any]) -> list[Any]:
        return self._gather(pending, self.config.weights.timeout_s, STAGE)


def target(draft: bool) -> tuple[bool, ...]:
    """The last argument of a worker's calls: only a draft model is named."""
    return (True,) if draft else ()


def make_connection(
    config: Config,
    transport: str,
    platform: Platform,
    dtype: str,
    units: Sequence[Unit],
    layouts: Sequence[Sequence[Mapping[str, Any] | None]],
    directory: str | None,
    *,
    draft: bool = False,
) -> Connection:
    """The description of who sends what to whom. `layouts[engine][worker]` maps a tensor to the box that worker needs; None: it needs everything."""
    limit, itemsize = int(config.weights.bucket_mb * 2**20), ITEMSIZE[dtype]
    receivers = tuple((engine, rank) for engine, workers in enumerate(layouts) for rank in range(len(workers)))
    if transport == "p2p":
        whole = {name: tuple((0, extent) for extent in parts[0].shape) for name, parts in check_coverage(units).items()}
        needs = [whole if layout is None else layout for workers in layouts for layout in workers]
        plans = tuple(tuple(pack(tensors, itemsize, limit)) for tensors in route(units, needs))
    else:
        plans = (tuple(buckets(units, itemsize, limit)),)
    return Connection(
        id=uuid.uuid4().hex,
        transport=transport,
        platform=platform.name,
        dtype=dtype,
        keep_base=config.weights.encoding == "delta",
        buckets=plans,
        receivers=receivers,
        timeout_s=config.weights.timeout_s,
        directory=directory,
        draft=draft,
        host="127.0.0.1" if config.placement.nodes == 1 else "",
        relayed=transport == "ipc" and platform.relays_ipc and len(receivers) > 1,
    )


def _ray_gather() -> Gather:
    from vime.loop.workers import gather

    return gather
