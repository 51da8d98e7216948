from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.leases import DevicePool, LeaseError

HOLD = """
import sys, time
from pathlib import Path
from e2e.leases import DevicePool
pool = DevicePool("x", tuple(range(4)), directory=Path(sys.argv[1]))
with pool.lease(int(sys.argv[2]), "holder", 30) as devices:
    print(*devices.devices, flush=True)
    time.sleep(float(sys.argv[3]))
"""

WORK = """
import fcntl, os, random, sys, time
from pathlib import Path
from e2e.leases import DevicePool
place, index = Path(sys.argv[1]), int(sys.argv[2])
allowed = [tuple(range(8)), (0, 1, 2, 3), (4, 5, 6, 7)][index % 3]
pool = DevicePool("x", allowed, index % 2 == 0, directory=place / "locks")
chance = random.Random(index)
print("up", flush=True)
while True:
    with pool.lease(chance.choice([1, 1, 2, 4]), f"worker {index}", 60) as lease:
        if not set(lease.devices) <= set(allowed):
            sys.exit(f"not allowed: {lease.devices}")
        witnesses = [os.open(place / f"held-{device}", os.O_RDWR | os.O_CREAT) for device in lease.devices]
        for witness in witnesses:
            fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)       # two holders of one device collide here
        time.sleep(chance.uniform(0, 0.02))
        for witness in witnesses:
            os.close(witness)
    with open(place / f"turns-{index}", "a") as turns:
        turns.write("x")
"""


def pool(tmp_path: Path, count: int = 4, contiguous: bool = False) -> DevicePool:
    return DevicePool("x", tuple(range(count)), contiguous, tmp_path)


def hold(tmp_path: Path, count: int, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), str(count), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert len(process.stdout.readline().split()) == count
    return process


def test_a_lease_is_all_or_nothing_and_ends_with_its_block(tmp_path: Path):
    with pool(tmp_path).lease(3, "a", 1) as first:
        with pytest.raises(LeaseError, match=r"b waited for 2 devices of x in vain; held by a \(process \d+, device 0\)"), pool(tmp_path).lease(2, "b", 0.5):
            pass
        with pool(tmp_path).lease(1, "c", 1) as second:
            assert not set(first.devices) & set(second.devices)
    with pool(tmp_path).lease(4, "d", 1) as whole:
        assert whole.devices == (0, 1, 2, 3)


def test_only_allowed_devices_are_leased(tmp_path: Path):
    narrowed = DevicePool("x", (2, 5), directory=tmp_path)
    with narrowed.lease(2, "a", 1) as lease:
        assert lease.devices == (2, 5)
    with pytest.raises(LeaseError, match="needs 3 devices of x; 2 may be used here"), narrowed.lease(3, "a", 1):
        pass


def test_contiguous_leases_are_aligned_blocks(tmp_path: Path):
    with pool(tmp_path, contiguous=True).lease(1, "a", 1) as one, pool(tmp_path, contiguous=True).lease(2, "b", 1) as two:
        assert (one.devices, two.devices) == ((0,), (2, 3))


def test_a_dead_holder_s_devices_are_free_at_once(tmp_path: Path):
    holder = hold(tmp_path, 4, 60)
    holder.kill()
    holder.wait()
    with pool(tmp_path).lease(4, "next", 2) as lease:
        assert len(lease.devices) == 4


def test_one_for_many_is_not_overtaken_for_ever(tmp_path: Path):
    """While a request for all four waits, later requests for one wait behind it."""
    holder = hold(tmp_path, 1, 1.0)
    big = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "4", "0.1"], stdout=subprocess.PIPE, text=True)
    time.sleep(0.6)
    with pytest.raises(LeaseError), pool(tmp_path).lease(1, "small", 0.2):
        pass
    assert big.wait(15) == 0
    assert holder.wait(5) == 0


def test_waiting_is_said_with_the_holder(tmp_path: Path):
    said: list[str] = []
    with pool(tmp_path).lease(4, "first", 1), pytest.raises(LeaseError), pool(tmp_path).lease(1, "second", 0.5, said.append):
        pass
    assert len(said) == 1
    assert "held by first" in said[0]


def test_requests_for_other_devices_do_not_wait_behind_one_another(tmp_path: Path):
    holder = hold(tmp_path, 4, 60)
    waiting = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), "1", "0"], stdout=subprocess.PIPE, text=True)
    time.sleep(1.0)  # it has its turn and waits for one of the four
    with DevicePool("x", (4, 5), directory=tmp_path).lease(2, "other", 1) as lease:
        assert lease.devices == (4, 5)
    holder.kill()
    holder.wait()
    assert waiting.wait(10) == 0


def test_neighbours_that_do_not_begin_at_a_multiple_are_taken_where_no_other_are_allowed(tmp_path: Path):
    with DevicePool("x", (5, 6, 7, 8), True, tmp_path).lease(4, "a", 1) as lease:
        assert lease.devices == (5, 6, 7, 8)
    with pytest.raises(LeaseError, match=r"a needs 2 neighbouring devices of x; those that may be used here are \[0, 2, 4\]"):
        with DevicePool("x", (0, 2, 4), True, tmp_path).lease(2, "a", 1):
            pass


def test_a_process_that_inherits_the_lease_holds_it(tmp_path: Path):
    """As a run's guard does: when the worker is killed, the devices stay taken until the guard has ended the run."""
    with pool(tmp_path).lease(2, "worker", 1) as lease:
        guard = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=lease.descriptors)
    try:
        with pytest.raises(LeaseError, match="held by worker"), pool(tmp_path).lease(4, "next", 0.5):
            pass
    finally:
        guard.kill()
        guard.wait()
    with pool(tmp_path).lease(4, "next", 1):
        pass


@pytest.mark.timeout(120)
def test_eight_processes_killed_at_random_never_share_a_device(tmp_path: Path):
    """Workers come and go by SIGKILL at random moments; every lease of the others still holds its devices alone, and none of them is lost."""
    chance = random.Random(1)
    workers = {index: start(tmp_path, index) for index in range(8)}
    for _ in range(12):
        time.sleep(chance.uniform(0, 0.15))
        index = chance.randrange(8)
        workers[index].kill()
        assert workers[index].wait() == -9, workers[index].communicate()[1]
        workers[index] = start(tmp_path, index)
    turns = {index: made(tmp_path, index) for index in workers}
    end = time.monotonic() + 60
    while any(made(tmp_path, index) < count + 2 for index, count in turns.items()):
        assert time.monotonic() < end, "a worker gets no device any more"
        assert all(worker.poll() is None for worker in workers.values()), [worker.communicate()[1] for worker in workers.values() if worker.poll() is not None]
        time.sleep(0.05)
    for worker in workers.values():
        worker.kill()
        worker.wait()
    with DevicePool("x", tuple(range(8)), directory=tmp_path / "locks").lease(8, "after", 2) as lease:
        assert len(lease.devices) == 8


def start(tmp_path: Path, index: int) -> subprocess.Popen[str]:
    worker = subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path), str(index)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "up\n"
    return worker


def made(tmp_path: Path, index: int) -> int:
    file = tmp_path / f"turns-{index}"
    return len(file.read_text()) if file.exists() else 0


@given(
    allowed=st.sets(st.integers(0, 15), min_size=1).map(lambda found: tuple(sorted(found))),
    count=st.integers(1, 16),
    contiguous=st.booleans(),
    taken=st.sets(st.integers(0, 15)),
)
@settings(max_examples=60, deadline=None)
def test_a_lease_is_count_allowed_devices_that_nobody_holds_where_there_are_such(allowed: tuple[int, ...], count: int, contiguous: bool, taken: set[int]):
    free = set(allowed) - taken
    blocks = [block for first in range(16) if set(block := range(first, first + count)) <= set(allowed)]
    blocks = [block for block in blocks if block[0] % count == 0] or blocks
    possible = any(free.issuperset(block) for block in blocks) if contiguous else len(free) >= count
    with tempfile.TemporaryDirectory() as place, ExitStack() as others:
        for device in taken:
            others.enter_context(DevicePool("x", (device,), directory=Path(place)).lease(1, "other", 0.1))
        wanted = DevicePool("x", allowed, contiguous, Path(place)).lease(count, "me", 0.0)
        if not possible:
            with pytest.raises(LeaseError), wanted:
                pass
            return
        with wanted as lease:
            assert len(set(lease.devices)) == len(lease.descriptors) == count
            assert free.issuperset(lease.devices)
            assert not contiguous or lease.devices == tuple(range(lease.devices[0], lease.devices[0] + count))
