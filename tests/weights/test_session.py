"""The session on scripted workers: one version for all engines or none, and errors that name what went wrong first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.rollout.child import config_of
from tests.weights.models import Shard, rows
from tests.weights.test_transports import Model
from vime.config.tree import Config
from vime.errors import RunError
from vime.platforms.cpu import CpuPlatform
from vime.weights.handles import LocalWorker, gather_local
from vime.weights.proof import BANDS, HeldCheck, check_gap, compare_held, probe_sequences
from vime.weights.receiver import Received, WeightReceiver
from vime.weights.sender import SenderMixin, WeightSender
from vime.weights.session import WeightSync


class Trainer(SenderMixin):
    """Sends half of every tensor; scores with a number that its weights decide."""

    def __init__(self, rank: int):
        self.tensors = {"a.weight": torch.arange(24.0).reshape(6, 4), "b.weight": torch.ones(4)}
        self.weight_sender = WeightSender(CpuPlatform(), rank, self.shards)
        self.rank = rank

    def shards(self) -> Iterator[Shard]:
        for name, tensor in self.tensors.items():
            yield from rows(name, tensor, 2)

    def logprobs(self, sequences: list[list[int]]) -> list[np.ndarray] | None:
        return scores(self.tensors, sequences) if self.rank == 0 else None


def scores(tensors: dict[str, torch.Tensor], sequences: list[list[int]]) -> list[np.ndarray]:
    total = float(sum(tensor.sum() for tensor in tensors.values()))
    return [np.full(len(ids) - 1, -total / 1000, np.float32) for ids in sequences]


class Engine:
    """A receiver and a log; `fail` raises at a method."""

    def __init__(self, index: int = 0) -> None:
        self.receiver, self.model, self.log, self.fail = WeightReceiver(), Model(), [], {}
        self.index, self.readable, self.status = index, True, ("dirty", -1)

    def _do(self, name: str) -> None:
        self.log.append(name)
        if name in self.fail:
            raise self.fail.pop(name)

    def layout(self) -> list[None]:
        return [None]

    def connect(self, connection: Any) -> None:
        self._do("connect")
        self.receiver.connect(connection, self.index, 0)

    def disconnect(self) -> None:
        self.receiver.close()

    def begin(self, version: int) -> None:
        self._do("begin")
        self.status = ("updating", -1)

    def receive(self, version: int, base_version: int | None = None) -> list[Received]:
        self._do("receive")
        return [self.receiver.receive(version, base_version, self.model)]

    def commit(self, version: int) -> None:
        self._do("commit")
        self.receiver.commit()
        self.status = ("clean", version)

    def abort(self, version: int) -> None:
        self.log.append("abort")
        self.receiver.abort()
        self.status = ("dirty", -1)

    def held(self) -> list[dict[str, str]]:
        if not self.readable:
            return [{}]
        digest = CpuPlatform().tensor_digest
        return [{unit.key: digest(self.model.tensors[unit.name][unit.slices]) for unit in self.receiver.units()}]

    def logprobs(self, sequences: list[list[int]]) -> list[np.ndarray]:
        self._do("logprobs")
        return scores(self.model.tensors, sequences)

    def resume(self) -> None:
        self._do("resume")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50}))
    return config_of(tmp_path, timeout_s=5.0)


class Setup:
    def __init__(self, config: Config, engines: int = 2):
        self.trainers, self.engines = [Trainer(rank) for rank in range(2)], [Engine(index) for index in range(engines)]
        self.sync = WeightSync(
            [LocalWorker(trainer, f"trainer {index}") for index, trainer in enumerate(self.trainers)],
            [LocalWorker(engine, f"engine {index}") for index, engine in enumerate(self.engines)],
            config,
            CpuPlatform(),
            gather=gather_local,
        )

    def step(self) -> None:
        for trainer in self.trainers:
            trainer.tensors["b.weight"] += 1


def test_every_engine_commits_the_version_before_any_resumes(config: Config) -> None:
    setup = Setup(config)
    report = setup.sync.push(4)
    assert [engine.status for engine in setup.engines] == [("clean", 4)] * 2
    assert all(torch.equal(engine.model.tensors[name], tensor) for engine in setup.engines for name, tensor in setup.trainers[0].tensors.items())
    assert setup.engines[0].log == ["connect", "begin", "receive", "commit", "resume"]
    assert (report.version, report.base_version, setup.sync.version) == (4, None, 4)
    assert set(report.digests) == {"a.weight[0:3,0:4]", "a.weight[3:6,0:4]", "b.weight[0:2]", "b.weight[2:4]"}


def test_the_event_line_says_which_proofs_ran(config: Config) -> None:
    event = Setup(config).sync.push(0).event()
    assert json.loads(json.dumps(event)) == event
    assert event["received"] == "digest"
    assert event["held"] == {"method": "digest", "tensors": 4, "read_back": 4, "mean_gap": None, "largest_gap": None}
    assert (event["version"], event["encoding"], event["transport"], event["tensors"]) == (0, "full", "ipc", 4)
    assert event["bytes"] > 0
    again = Setup(config).sync.push(0).event()
    assert again["digest"] == event["digest"]


@pytest.mark.parametrize("stage", ["begin", "receive", "commit"])
def test_one_engine_that_fails_keeps_all_from_resuming(stage: str, config: Config) -> None:
    setup = Setup(config)
    setup.engines[1].fail[stage] = RunError("weight sync", f"engine 1: {stage} broke")
    with pytest.raises(RunError, match=f"engine 1: {stage} broke"):
        setup.sync.push(1)
    assert [engine.status for engine in setup.engines] == [("dirty", -1)] * 2
    assert all("resume" not in engine.log for engine in setup.engines)
    assert setup.sync.version is None
    setup.step()
    report = setup.sync.push(2)  # reconnects and sends everything
    assert report.base_version is None
    assert [engine.status for engine in setup.engines] == [("clean", 2)] * 2
    assert all(torch.equal(engine.model.tensors["b.weight"], setup.trainers[0].tensors["b.weight"]) for engine in setup.engines)


def test_a_trainer_that_fails_is_named_not_the_engines_that_waited_for_it(config: Config) -> None:
    setup = Setup(config)
    setup.sync.push(0)
    del setup.trainers[1].tensors["b.weight"]
    with pytest.raises(RunError, match=r"b\.weight\[2:4\] is not among this rank's shards"):
        setup.sync.push(1)
    assert [engine.status for engine in setup.engines] == [("dirty", -1)] * 2


def test_deltas_follow_committed_versions_only(config: Config) -> None:
    setup = Setup(replace(config, weights=replace(config.weights, encoding="delta")))
    bases = []
    for version in range(4):
        if version == 2:
            setup.engines[0].fail["commit"] = RunError("weight sync", "engine 0: broke")
            with pytest.raises(RunError, match="engine 0: broke"):
                setup.sync.push(version)
        setup.step()
        bases.append(setup.sync.push(version).base_version)
        assert all(torch.equal(engine.model.tensors["b.weight"], setup.trainers[0].tensors["b.weight"]) for engine in setup.engines)
    assert bases == [None, 0, None, 2]


def test_a_restarted_engine_gets_everything(config: Config) -> None:
    setup = Setup(replace(config, weights=replace(config.weights, encoding="delta")))
    setup.sync.push(0)
    setup.engines[1] = Engine(1)
    setup.sync.rejoin(1, LocalWorker(setup.engines[1], "engine 1"))
    setup.step()
    assert setup.sync.push(1).base_version is None
    assert torch.equal(setup.engines[1].model.tensors["a.weight"], setup.trainers[0].tensors["a.weight"])


@pytest.mark.parametrize(("every", "expected"), [(0, []), (1, [0, 1, 2, 3, 4]), (2, [0, 2, 4])])
def test_the_held_proof_runs_as_often_as_configured_and_received_always(every: int, expected: list[int], config: Config) -> None:
    setup = Setup(replace(config, weights=replace(config.weights, verify_held_every=every)))
    reports = [setup.sync.push(version) for version in range(5)]
    assert [report.version for report in reports if report.held_check is not None] == expected
    assert all(report.event()["received"] == "digest" for report in reports)


def test_what_cannot_be_read_back_is_probed_before_anybody_resumes(config: Config) -> None:
    setup = Setup(config)
    for engine in setup.engines:
        engine.readable = False
    report = setup.sync.push(0)
    assert report.held_check.method == "probe"
    assert report.held_check.mean_gap == 0.0
    assert setup.engines[0].log[-2:] == ["logprobs", "resume"]
    setup.step()
    original = Model.load
    setup.engines[1].model.load = lambda tensors: original(setup.engines[1].model, [(name, tensor + 5) for name, tensor in tensors])
    with pytest.raises(RunError, match="engine 1 does not compute with the weights it received"):
        setup.sync.push(1)
    assert all(engine.status == ("dirty", -1) for engine in setup.engines)
    assert setup.engines[1].log.count("resume") == 1


def test_a_held_digest_that_differs_names_the_tensor() -> None:
    with pytest.raises(RunError, match="weight sync: b: engine 3 holds digest 00 after the sync, the trainer sent ff"):
        compare_held(3, {"a": "aa", "b": "ff"}, {"a": "aa", "b": "00"})


@pytest.mark.parametrize("dtype", BANDS)
def test_a_gap_outside_the_band_or_not_a_number_is_never_good(dtype: str) -> None:
    mean, largest = BANDS[dtype]
    reference = [np.zeros(50, np.float32)]
    inside = [np.full(50, mean * 0.9, np.float32)]
    assert check_gap(0, dtype, reference, inside)[0] == pytest.approx(mean * 0.9, rel=1e-4)
    spike = np.zeros(50, np.float32)
    spike[7] = largest * 1.1
    for bad in (np.full(50, mean * 1.1, np.float32), spike, np.full(50, np.nan, np.float32)):
        with pytest.raises(RunError, match=rf"engine 0 does not compute .*allowed for {dtype}"):
            check_gap(0, dtype, reference, [bad])


def test_probe_sequences_are_fixed_and_fit_the_engine(config: Config) -> None:
    first, second = probe_sequences(config), probe_sequences(config)
    assert first == second
    assert all(len(ids) == 24 and 0 <= min(ids) <= max(ids) < 50 for ids in first)
    short = replace(config, rollout=replace(config.rollout, max_prompt_tokens=4, max_response_tokens=4))
    assert {len(ids) for ids in probe_sequences(short)} == {8}


def test_names_of_the_methods_of_proof() -> None:
    assert HeldCheck(3, 3, None, None, 0.1).method == "digest"
    assert HeldCheck(3, 0, 0.0, 0.0, 0.1).method == "probe"
    assert HeldCheck(3, 1, 0.0, 0.0, 0.1).method == "digest+probe"


def test_trainers_that_export_nothing_are_an_error(config: Config) -> None:
    setup = Setup(config)
    for trainer in setup.trainers:
        trainer.tensors = {}
    with pytest.raises(RunError, match="the trainers export no weights"):
        setup.sync.push(0)


def test_a_worker_that_does_not_answer_is_named_with_its_method(config: Config) -> None:
    import threading

    setup = Setup(replace(config, weights=replace(config.weights, timeout_s=0.3)))
    release = threading.Event()
    setup.engines[1].begin = lambda version: release.wait(5)
    with pytest.raises(RunError, match=r"weight sync: engine 1 did not finish( begin)? within 0.3 s"):
        setup.sync.push(0)
    release.set()
