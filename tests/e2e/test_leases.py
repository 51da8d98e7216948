from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

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
import os, random, signal, sys, time
from pathlib import Path
from e2e.leases import DevicePool
place, index = Path(sys.argv[1]), int(sys.argv[2])
pool = DevicePool("x", tuple(range(4)), directory=place / "locks")
chance = random.Random(index)
for turn in range(6):
    count = chance.choice([1, 1, 2, 3])
    with pool.lease(count, f"worker {index}", 60) as lease:
        marks = [place / f"held-{device}" for device in lease.devices]
        for mark in marks:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))       # two holders of one device would collide here
        time.sleep(chance.uniform(0, 0.02))
        for mark in marks:
            mark.unlink()
        if index >= 6 and turn == 3:
            os.kill(os.getpid(), signal.SIGKILL)
print("done")
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


def test_eight_processes_two_of_them_killed_never_share_a_device(tmp_path: Path):
    workers = [
        subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path), str(index)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for index in range(8)
    ]
    for index, worker in enumerate(workers):
        out, err = worker.communicate(timeout=90)
        assert (worker.returncode, out) == ((-9, "") if index >= 6 else (0, "done\n")), err
    assert list(tmp_path.glob("held-*")) == []
