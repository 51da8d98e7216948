"""Every transport, sender to receiver in threads of this process: several owners, several buckets, deltas; and what happens when a peer is gone."""

from __future__ import annotations

import gc
import json
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.weights.models import Shard, rows
from vime.errors import RunError, UserError
from vime.platforms.cpu import CpuPlatform
from vime.weights.connection import Connection
from vime.weights.encodings import header_bytes
from vime.weights.plan import Bucket, Message, PeerGoneError, Unit, buckets, pack, route
from vime.weights.receiver import WeightReceiver
from vime.weights.sender import WeightSender
from vime.weights.transports import choose, disk
from vime.weights.transports.broadcast import listening_store
from vime.weights.transports.ipc import boot_id

TRANSPORTS = ("ipc", "relay", "broadcast", "p2p", "disk")  # relay: ipc as it is between several cards
OWNERS, RECEIVERS = 2, 2


class Trainer:
    """Tensors whose rows are spread over the owners."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tensors = {f"layers.{index}.weight": torch.randn(8 + index, 16, generator=generator) for index in range(12)} | {"norm.weight": torch.randn(7)}

    def shards(self) -> Iterator[Shard]:
        for name, tensor in self.tensors.items():
            yield from rows(name, tensor, OWNERS)


class Model:
    """A loader that keeps references, as vLLM does, and copies them only when told to."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def load(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.tensors.update(tensors)

    def settle(self, buffer: torch.Tensor) -> None:
        span = range(buffer.data_ptr(), buffer.data_ptr() + buffer.numel())
        self.tensors = {name: tensor.clone() if tensor.data_ptr() in span else tensor for name, tensor in self.tensors.items()}


class Link:
    """Connected senders and receivers of one transport."""

    def __init__(self, transport: str, folder: Path, *, delta: bool = False, bucket: int = 2000, needs: list[dict] | None = None, timeout_s: float = 10.0):
        self.trainer = Trainer()
        self.senders = [WeightSender(CpuPlatform(), rank, self.trainer.shards) for rank in range(OWNERS)]
        units = [unit for sender in self.senders for unit in sender.manifest()]
        whole = {unit.name: tuple((0, extent) for extent in unit.shape) for unit in units}
        plans = (
            tuple(tuple(pack(parts, 4, bucket)) for parts in route(units, needs or [whole] * RECEIVERS))
            if transport == "p2p"
            else (tuple(buckets(units, 4, bucket)),)
        )
        receivers, relayed = tuple((index, 0) for index in range(RECEIVERS)), transport == "relay"
        name = "ipc" if relayed else transport
        self.connection = Connection("link", name, "cpu", "float32", delta, plans, receivers, timeout_s, str(folder), relayed=relayed)
        self.receivers, self.models = [WeightReceiver() for _ in range(RECEIVERS)], [Model() for _ in range(RECEIVERS)]
        self.pool = ThreadPoolExecutor(OWNERS + RECEIVERS)
        endpoints = {rank: sender.open(self.connection) for rank, sender in enumerate(self.senders)}
        self.connection = replace(self.connection, endpoints=endpoints)
        self.together(
            [(sender.connect, self.connection) for sender in self.senders]
            + [(receiver.connect, self.connection, index, 0) for index, receiver in enumerate(self.receivers)]
        )

    def together(self, calls: list[tuple]) -> list:
        """Results in order; of several failures, one that is not a consequence of another."""
        futures = [self.pool.submit(*call) for call in calls]
        failures = [error for future in futures if (error := future.exception(30)) is not None]
        if failures:
            raise next((error for error in failures if not isinstance(error, PeerGoneError)), failures[0])
        return [future.result() for future in futures]

    def push(self, version: int, base: int | None = None) -> list:
        sending = [(sender.send, version, base) for sender in self.senders]
        receiving = [(receiver.receive, version, base, model) for receiver, model in zip(self.receivers, self.models, strict=True)]
        if self.connection.transport != "disk":
            return self.together(sending + receiving)
        sent = self.together(sending)
        disk.mark_complete(str(self.connection.directory), version, base, {})
        return sent + self.together(receiving)

    def commit(self) -> None:
        for receiver in self.receivers:
            receiver.commit()

    def close(self) -> None:
        for end in [*self.receivers, *self.senders]:
            end.close()
        self.pool.shutdown()

    def same(self, model: Model) -> bool:
        return model.tensors.keys() == self.trainer.tensors.keys() and all(
            torch.equal(model.tensors[name], tensor) for name, tensor in self.trainer.tensors.items()
        )


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_receiver_gets_the_trainers_tensors_from_several_owners_in_several_buckets(transport: str, tmp_path: Path) -> None:
    link = Link(transport, tmp_path)
    assert len(link.connection.buckets[0]) > 3
    for version in range(3):
        for tensor in link.trainer.tensors.values():
            tensor.add_(1)
        results = link.push(version)
        link.commit()
        assert all(link.same(model) for model in link.models)
        sent = {key: digest for part in results[:OWNERS] for key, digest in part.digests.items()}
        for report in results[OWNERS:]:
            assert report.version == version
            assert report.digests.items() <= sent.items()
    link.close()


def test_deltas_carry_only_changes_and_give_the_same_tensors(transport: str, tmp_path: Path) -> None:
    link = Link(transport, tmp_path, delta=True)
    first = link.push(0)
    link.commit()
    link.trainer.tensors["layers.3.weight"][2, 5] += 1
    link.trainer.tensors["norm.weight"][6] = -0.0
    second = link.push(1, base=0)
    link.commit()
    assert all(link.same(model) for model in link.models)
    bytes_of = [sum(part.nbytes for part in results[:OWNERS]) for results in (first, second)]
    assert bytes_of[1] < bytes_of[0] / 2
    link.close()


def test_a_delta_against_a_version_that_was_not_committed_is_refused(transport: str, tmp_path: Path) -> None:
    link = Link(transport, tmp_path, delta=True, timeout_s=1.0)
    link.push(0)  # received, but the engines never committed it
    with pytest.raises(RunError, match="a delta against version 0 cannot be applied: this engine holds none. It needs a full sync"):
        link.receivers[0].receive(1, 0, link.models[0])
    with pytest.raises(RunError, match="trainer rank 0 has no copy of version 7"):
        link.senders[0].send(8, 7)
    link.close()


def test_peer_to_peer_sends_each_receiver_only_what_it_needs(tmp_path: Path) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in Trainer().tensors.items()}
    left = {name: ((0, shape[0]), (0, 8)) for name, shape in shapes.items() if len(shape) == 2}
    right = {name: ((0, shape[0]), (8, 16)) for name, shape in shapes.items() if len(shape) == 2}
    link = Link("p2p", tmp_path, needs=[left, right | {"norm.weight": ((0, 7),)}])
    link.push(0)
    for model, columns, rest in ((link.models[0], slice(0, 8), slice(8, 16)), (link.models[1], slice(8, 16), slice(0, 8))):
        for name in left:
            assert torch.equal(model.tensors[name][:, columns], link.trainer.tensors[name][:, columns])
            assert model.tensors[name][:, rest].isnan().all()  # a loader that reads what it was not to need is seen at once
    assert "norm.weight" not in link.models[0].tensors
    assert torch.equal(link.models[1].tensors["norm.weight"], link.trainer.tensors["norm.weight"])
    link.close()


def test_a_damaged_message_stops_the_receiver_and_names_the_tensor(tmp_path: Path) -> None:
    link = Link("ipc", tmp_path)
    original = link.senders[1].channel.put

    def damaged(message, nbytes, receiver):
        channel = link.senders[1].channel
        channel.memory.tensor[channel.slot * channel.slot_bytes + header_bytes(message)] ^= 1
        original(message, nbytes, receiver)

    link.senders[1].channel.put = damaged
    with pytest.raises(RunError, match=r"layers\.0\.weight\[4:8,0:16\]: the bytes received"):
        link.push(0)
    link.close()


def push_often(link: Link) -> None:
    for version in range(3):
        link.push(version)


@pytest.mark.parametrize("transport", ["ipc", "relay", "broadcast"])
def test_a_receiver_that_is_gone_ends_the_senders_wait_at_once(transport: str, tmp_path: Path) -> None:
    link = Link(transport, tmp_path, timeout_s=30.0)
    link.receivers[1].close()
    start = time.monotonic()
    with pytest.raises(RunError, match="weight sync: "):
        push_often(link)
    assert time.monotonic() - start < 5
    link.receivers[0].close()
    for sender in link.senders:
        sender.close()


def test_a_trainer_rank_that_is_gone_ends_the_relay_at_once(tmp_path: Path) -> None:
    link = Link("relay", tmp_path, timeout_s=30.0)
    link.push(0)
    link.senders[1].close()
    start = time.monotonic()
    with pytest.raises(RunError, match="weight sync: "):
        link.together(
            [(link.senders[0].send, 1, None)] + [(receiver.receive, 1, None, model) for receiver, model in zip(link.receivers, link.models, strict=True)]
        )
    assert time.monotonic() - start < 10
    for end in [*link.receivers, link.senders[0]]:
        end.close()


@pytest.mark.parametrize("transport", ["ipc", "relay"])
def test_memory_that_cannot_be_had_is_told_as_it_is(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: CpuPlatform, nbytes: int) -> None:
        raise MemoryError(f"{nbytes} bytes")

    link = Link(transport, tmp_path)
    link.push(0)
    monkeypatch.setattr(CpuPlatform, "share", full)
    for _ in range(2):  # the second one closes what the first left
        with pytest.raises(MemoryError):
            link.senders[0].open(link.connection)
    link.senders[0].close()
    link.senders[0].close()
    for end in [*link.receivers, link.senders[1]]:
        end.close()


CHILD = """
import pickle, sys, time
from pathlib import Path
from tests.weights.test_transports import Trainer
from vime.platforms.cpu import CpuPlatform
from vime.weights.sender import WeightSender

connection = pickle.load(open(sys.argv[1], "rb"))
sender = WeightSender(CpuPlatform(), 0, Trainer().shards)
endpoint = sender.open(connection)
Path(sys.argv[2]).write_text(endpoint["socket"])
sender.connect(connection)
sender.send(0)
time.sleep(60)
"""


def mapped() -> bool:
    return "memfd:vime-weights" in Path("/proc/self/maps").read_text()


def test_shared_memory_of_a_killed_sender_is_reclaimed_and_its_receiver_told(tmp_path: Path) -> None:
    units = WeightSender(CpuPlatform(), 0, Trainer().shards).manifest()
    rows_of_rank_0 = (Bucket((Message(0, tuple(units)),)),)
    connection = Connection("killed", "ipc", "cpu", "float32", False, (rows_of_rank_0,), ((0, 0),), 20.0)
    (tmp_path / "connection").write_bytes(pickle.dumps(connection))
    with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "connection"), str(tmp_path / "socket")]) as child:
        name = wait_for(tmp_path / "socket")
        receiver = WeightReceiver()
        receiver.connect(replace(connection, endpoints={0: {"socket": name, "boot": boot_id(), "device": "cpu"}}), 0, 0)
        receiver.receive(0, None, Model())
        assert mapped()
        child.send_signal(signal.SIGKILL)
        child.wait(10)
    with pytest.raises(PeerGoneError, match="waited for trainer rank 0 to fill a weight buffer, but the other end is gone"):
        receiver.receive(1, None, Model())
    gc.collect()
    assert not mapped()  # the last mapping is gone and the file had no name: the kernel has the memory back


def wait_for(path: Path) -> str:
    until = time.monotonic() + 30
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return path.read_text()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closing_gives_every_descriptor_back(transport: str, tmp_path: Path) -> None:
    Link(transport, tmp_path).close()  # the first one loads libraries
    before = open_files()
    for _ in range(3):
        link = Link(transport, tmp_path)
        link.push(0)
        link.close()
        del link
    assert open_files() <= before + 1


def test_a_port_in_use_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"weights: cannot listen on 127.0.0.1:{port}: Address already in use. Choose another port"):
            listening_store("127.0.0.1", port, 5.0)


def test_the_store_listens_on_the_loopback_interface_only() -> None:
    store = listening_store("127.0.0.1", 0, 5.0)
    listeners = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"]
    assert f"0100007F:{store.port:04X}" in listeners
    assert f"00000000:{store.port:04X}" not in listeners


# ---- disk ---------------------------------------------------------------------------------------------------------------------------------------------


def test_a_full_version_on_disk_is_safetensors_by_hugging_face_names(tmp_path: Path) -> None:
    link = Link("disk", tmp_path)
    link.push(5)
    stored = {name: tensor for file in sorted((tmp_path / "v00000005").glob("*.safetensors")) for name, tensor in load_file(file).items()}
    assert torch.equal(stored["norm.weight[0:4]"], link.trainer.tensors["norm.weight"][:4])
    assert json.loads((tmp_path / "v00000005/complete.json").read_text())["version"] == 5
    link.close()


def test_a_version_that_is_not_complete_does_not_exist(tmp_path: Path) -> None:
    link = Link("disk", tmp_path, timeout_s=0.2)
    link.together([(sender.send, 3, None) for sender in link.senders])
    with pytest.raises(RunError, match=r"no complete version in .*v00000003 within 0.2 s"):
        link.receivers[0].receive(3, None, link.models[0])
    assert not link.models[0].tensors
    link.close()


def test_asking_for_another_version_than_the_one_on_disk_is_an_error_not_a_success(tmp_path: Path) -> None:
    link = Link("disk", tmp_path)
    link.push(0)
    (tmp_path / "v00000000").rename(tmp_path / "v00000004")
    with pytest.raises(RunError, match="holds version 0 against base None, not version 4 against None"):
        link.receivers[0].receive(4, None, link.models[0])
    link.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
from tests.weights.test_transports import Link
from vime.errors import RunError

link = Link("disk", Path(sys.argv[1]))
link.push(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    link.push(1)
except RunError as error:
    print(error)
"""


def test_a_full_disk_is_a_clear_error_and_leaves_the_earlier_version(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    assert "weight sync: cannot write" in result.stdout
    assert "File too large" in result.stdout
    assert "set weights.disk_path to another directory" in result.stdout
    assert not list(tmp_path.rglob("*.tmp"))
    assert (tmp_path / "v00000000" / "complete.json").is_file()
    assert not (tmp_path / "v00000001" / "complete.json").exists()


def test_old_versions_leave_the_disk(tmp_path: Path) -> None:
    link = Link("disk", tmp_path)
    for version in range(5):
        link.push(version)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v00000003", "v00000004"]
    link.close()


def test_auto_is_shared_memory_when_colocated_and_broadcast_when_not() -> None:
    platform = CpuPlatform()
    assert choose("auto", "colocate", platform) == "ipc"
    assert choose("auto", "non-colocate", platform) == "broadcast"
    platform.weight_transports = ("broadcast",)
    with pytest.raises(UserError, match=r"weights.transport: 'ipc' is not available on cpu \(have broadcast\)"):
        choose("ipc", "colocate", platform)


def test_units_of_a_shard_that_disappeared_are_named() -> None:
    trainer = Trainer()
    sender = WeightSender(CpuPlatform(), 0, trainer.shards)
    unit = Unit("norm.weight", (7,), ((0, 7),), 0)  # rank 0 owns rows 0 to 4 only
    from vime.weights.sender import Tensors

    with pytest.raises(RunError, match="norm.weight is not among this rank's shards"):
        Tensors(shard for shard in sender.shards() if shard.owner_rank == 0).of(unit)
