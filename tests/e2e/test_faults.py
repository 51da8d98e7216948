"""Each planted fault does what it says to the function of vime that it replaces; the originals come back with monkeypatch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from e2e.faults import FAULTS


@dataclass
class Answer:
    group_id: int
    reward: float | None
    reward_error: str | None = None


@dataclass(frozen=True)
class Report:
    version: int
    weights: int


def plant(name: str) -> None:
    patch = FAULTS[name].patch
    assert patch is not None
    patch()


def test_sign_flip(monkeypatch: pytest.MonkeyPatch):
    from vime.algos import advantages
    from vime.loop import batch

    right = advantages.group_advantages(np.array([1.0, 0.0]), np.array([7, 7]))
    monkeypatch.setattr(advantages, "group_advantages", advantages.group_advantages)
    plant("sign-flip")
    assert batch.advantage_rules.group_advantages(np.array([1.0, 0.0]), np.array([7, 7])).tolist() == (-right).tolist() == [-0.5, 0.5]


def test_rewards_shuffled_stay_in_their_group(monkeypatch: pytest.MonkeyPatch):
    from vime.rewards.pool import RewardPool

    monkeypatch.setattr(RewardPool, "score", lambda self, samples: {"told": 1.0})
    plant("rewards-shuffled")
    samples = [Answer(group, float(10 * group + index)) for index in range(16) for group in range(3)]
    before = [sample.reward for sample in samples]
    assert RewardPool.score(object(), samples) == {"told": 1.0}  # type: ignore[arg-type]
    assert [sample.reward for sample in samples] != before
    for group in range(3):
        assert Counter(s.reward for s in samples if s.group_id == group) == Counter(float(10 * group + index) for index in range(16))


@pytest.mark.parametrize(("name", "pushed"), [("sync-off", [0]), ("sync-every-4", [0, 4, 8])])
def test_a_sync_that_does_less_than_it_says(monkeypatch: pytest.MonkeyPatch, name: str, pushed: list[int]):
    from vime.weights.session import WeightSync

    done: list[int] = []

    def push(self: object, version: int) -> Report:
        done.append(version)
        return Report(version, version)

    monkeypatch.setattr(WeightSync, "push", push)
    plant(name)
    sync = WeightSync.__new__(WeightSync)
    assert [sync.push(version).version for version in range(10)] == list(range(10))
    assert done == pushed


def test_sampler_cold(monkeypatch: pytest.MonkeyPatch):
    from vime.rollout import router

    monkeypatch.setattr(router, "Sampling", router.Sampling)
    plant("sampler-cold")
    assert router.Sampling(1.0, 1.0, -1).temperature == 0.9
    assert router.Sampling(0.0, purpose="eval").temperature == 0.0


def test_the_launcher_is_vime_with_a_fault():
    done = subprocess.run([sys.executable, "-m", "e2e.faults", "sync-off", "train", "/nowhere.yaml"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "no such file" in done.stderr) == (2, True), done.stderr
    listed = subprocess.run([sys.executable, "-m", "e2e.faults"], capture_output=True, text=True, timeout=60)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(FAULTS)


def test_a_matter_of_configuration_needs_no_launcher():
    done = subprocess.run([sys.executable, "-m", "e2e.faults", "lr-tenth", "train", "x.yaml"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "use python -m e2e run CELL --fault lr-tenth" in done.stderr
