"""The CPU provider: complete, honest about what it lacks, and right in what it computes."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch.distributed import BroadcastOptions, TCPStore

from tests.rollout.child import config_of
from vime.config.tree import Config
from vime.errors import UserError
from vime.platforms import registry
from vime.platforms.base import CAPABILITIES, Platform
from vime.platforms.cpu import CpuPlatform, cores


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(tmp_path)


def test_every_member_of_the_protocol_is_there_with_its_arguments() -> None:
    platform = CpuPlatform()
    for name in Platform.__annotations__:
        assert hasattr(platform, name), name
    for name, method in inspect.getmembers(Platform, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(method).parameters)[1:] == list(inspect.signature(getattr(platform, name)).parameters), name


def test_a_capability_is_there_or_missing_with_its_reason_never_both() -> None:
    platform = CpuPlatform()
    assert platform.capabilities | platform.missing.keys() == CAPABILITIES
    assert not platform.capabilities & platform.missing.keys()
    assert all(len(reason) > 20 for reason in platform.missing.values())


def test_slots_are_enough_for_a_small_layout_on_any_machine() -> None:
    assert CpuPlatform().device_count() == max(cores(), 8)
    assert CpuPlatform().ray_options(0.5) == {"num_cpus": 0.5}


def test_the_environment_of_each_role(config: Config) -> None:
    platform = CpuPlatform()
    driver, trainer, engine = (platform.environment(role, config) for role in ("driver", "trainer", "engine"))
    assert driver.items() <= trainer.items()
    assert driver["GLOO_SOCKET_IFNAME"] == "lo"
    assert "OMP_NUM_THREADS" not in driver
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in trainer
    assert engine["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert engine["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert all(isinstance(value, str) for value in engine.values())


def test_processes_that_work_at_the_same_time_share_the_cores(config: Config) -> None:
    platform = CpuPlatform()
    two = replace(config, parallel=replace(config.parallel, data=2), rollout=replace(config.rollout, engines=4))
    assert int(platform.environment("trainer", config)["OMP_NUM_THREADS"]) == cores()
    assert int(platform.environment("trainer", two)["OMP_NUM_THREADS"]) == max(1, cores() // 2)
    assert int(platform.environment("engine", two)["OMP_NUM_THREADS"]) == max(1, cores() // 4)


def test_a_cache_size_of_the_users_is_not_overridden(config: Config) -> None:
    chosen = replace(config, vllm={"kv_cache_memory_bytes": 2**28})
    assert "VLLM_CPU_KVCACHE_SPACE" not in CpuPlatform().environment("engine", chosen)


def test_several_nodes_do_not_bind_the_loopback_interface(config: Config) -> None:
    many = replace(config, placement=replace(config.placement, nodes=2))
    assert "GLOO_SOCKET_IFNAME" not in CpuPlatform().environment("trainer", many)


def test_a_digest_reads_the_tensors_memory_without_a_copy() -> None:
    tensor = torch.zeros(64 * 2**20, dtype=torch.bfloat16)
    before = CpuPlatform().peak_memory_gib()
    CpuPlatform().tensor_digest(tensor)
    assert CpuPlatform().peak_memory_gib() - before < 0.05  # the tensor has 0.125 GiB


def test_a_group_outside_the_world_works_beside_another_one() -> None:
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10), False)
    results: dict[int, float] = {}

    def member(rank: int) -> None:
        own = TCPStore("127.0.0.1", store.port, None, False, timedelta(seconds=10), False)
        group = CpuPlatform().new_process_group(own, rank, 2, timedelta(seconds=10))
        tensor = torch.full((4,), float(rank + 7))
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 0
        group.broadcast([tensor], options).wait()
        results[rank] = float(tensor.sum())

    threads = [Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {0: 32.0, 1: 32.0}


def test_a_platform_is_found_by_name_once() -> None:
    assert registry.get("cpu") is registry.get("cpu")
    assert registry.get("cpu").name == "cpu"


def test_an_unknown_platform_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"platform: no platform 'cpus' here \(have .*cpu.*\); did you mean 'cpu'\?"):
        registry.get("cpus")


class Vendor:
    """A platform of somebody else's package."""

    name = "vendor"


class Point:
    name, value = "vendor", "tests.platforms.test_cpu:Vendor"


def test_a_package_adds_its_platform_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()] if group == "vime.platforms" else [])
    assert "vendor" in registry.names()
    assert registry.get("vendor").name == "vendor"
    registry.get.cache_clear()


def test_detection_takes_the_accelerator_that_is_here_and_asks_when_there_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.detect() == "cpu"
    here: set[str] = set()
    for name in ("cuda", "npu"):
        monkeypatch.setattr(type(registry.get(name)), "available", lambda self: self.name in here)
    for name in ("cuda", "npu"):
        here = {name}
        assert registry.detect() == name
    here = {"cuda", "npu"}
    with pytest.raises(UserError, match=r"platform: auto, but this machine could be cuda or npu: set"):
        registry.detect()


def test_device_nodes_without_the_vendors_packages_are_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "npu"):
        monkeypatch.setattr(type(registry.get(name)), "device_count", lambda self: 8)
    assert registry.detect() == "cpu"


def test_a_platform_is_found_by_the_type_of_its_devices() -> None:
    assert registry.for_device("npu").name == "npu"
    with pytest.raises(UserError, match="'xpu'"):
        registry.for_device("xpu")


@pytest.mark.parametrize(
    ("model", "rollout", "message"),
    [
        ({"linear_key_head_dim": 64, "linear_value_head_dim": 128}, "bfloat16", None),
        ({"hidden_size": 64}, "float32", None),
        ({"text_config": {"linear_key_head_dim": 64, "linear_value_head_dim": 64}}, None, "float32 cannot be served.*Set rollout.dtype: bfloat16"),
        ({"linear_key_head_dim": 32, "linear_value_head_dim": 64}, "bfloat16", "linear_key_head_dim 32: .* heads of 64 or 128 alone"),
    ],
)
def test_a_delta_net_that_the_engine_cannot_serve_is_refused_at_once(model, rollout, message, config):
    problems = CpuPlatform().preflight(replace(config, rollout=replace(config.rollout, dtype=rollout)), model, {})
    assert (problems == []) if message is None else re.search(message, "\n".join(problems))
