"""CUDA and NPU providers on a machine without either: environment, options, bring-up order and error paths, with small stand-ins for the vendors' modules."""

from __future__ import annotations

import inspect
import sys
import types
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from tests.rollout.child import config_of
from vime.config.tree import Config
from vime.errors import UserError
from vime.platforms import launch
from vime.platforms.base import CAPABILITIES, Platform, PlatformError
from vime.platforms.cuda import CudaPlatform
from vime.platforms.npu import NpuPlatform, read_version

PROVIDERS = [CudaPlatform(), NpuPlatform()]


@pytest.fixture(params=PROVIDERS, ids=lambda platform: platform.name)
def platform(request: pytest.FixtureRequest) -> Platform:
    return request.param


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(tmp_path)


def colocated(config: Config, **placement: object) -> Config:
    return replace(config, placement=replace(config.placement, mode="colocate", **placement))


def test_every_member_of_the_protocol_is_there_with_its_arguments(platform: Platform) -> None:
    for name in Platform.__annotations__:
        assert hasattr(platform, name), name
    for name, method in inspect.getmembers(Platform, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(method).parameters)[1:] == list(inspect.signature(getattr(platform, name)).parameters), name


def test_a_capability_is_there_or_missing_with_its_reason_never_both(platform: Platform) -> None:
    assert platform.capabilities | platform.missing.keys() == CAPABILITIES
    assert not platform.capabilities & platform.missing.keys()


def test_trainers_and_engines_agree_on_what_both_read(platform: Platform, config: Config) -> None:
    for case in (config, colocated(config)):
        trainer, engine = platform.environment("trainer", case), platform.environment("engine", case)
        assert {name: trainer[name] for name in trainer.keys() & engine.keys()} == {name: engine[name] for name in trainer.keys() & engine.keys()}
        assert all(isinstance(value, str) for value in [*trainer.values(), *engine.values()])


def test_segments_expand_only_where_no_memory_is_shared(config: Config) -> None:
    for provider, variable in ((PROVIDERS[0], "PYTORCH_CUDA_ALLOC_CONF"), (PROVIDERS[1], "PYTORCH_NPU_ALLOC_CONF")):
        assert provider.environment("trainer", config)[variable] == "expandable_segments:True"
        assert provider.environment("engine", colocated(config))[variable] == "expandable_segments:False"


def test_weights_of_an_ascend_engine_stay_in_the_layout_they_are_sent_in(config: Config) -> None:
    assert PROVIDERS[1].environment("engine", config)["VLLM_ASCEND_ENABLE_NZ"] == "0"
    assert "VLLM_ASCEND_ENABLE_NZ" not in PROVIDERS[1].environment("trainer", config)


def test_ray_leaves_the_visible_devices_alone(platform: Platform, config: Config) -> None:
    assert platform.environment("driver", config)[f"RAY_EXPERIMENTAL_NOSET_{platform.visible_devices_variable}"] == "1"
    assert platform.ray_options(0.5) == {"num_cpus": 0}


def test_deterministic_training_switches_the_libraries(config: Config) -> None:
    chosen = replace(config, train=replace(config.train, deterministic=True))
    assert "HCCL_DETERMINISTIC" not in PROVIDERS[1].environment("trainer", config)
    assert PROVIDERS[1].environment("trainer", chosen)["HCCL_DETERMINISTIC"] == "true"
    assert PROVIDERS[0].environment("trainer", chosen)["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_hccl_waits_as_long_as_the_run_does_within_its_own_bounds(config: Config) -> None:
    for seconds, expected in ((10, "120"), (600, "600"), (99999, "7200")):
        slow = replace(config, timeouts=replace(config.timeouts, start_s=seconds))
        assert PROVIDERS[1].environment("trainer", slow)["HCCL_CONNECT_TIMEOUT"] == expected


def test_a_colocated_engine_can_sleep_unless_memory_stays(platform: Platform, config: Config) -> None:
    assert "enable_sleep_mode" not in platform.engine_options(config)
    assert platform.engine_options(colocated(config))["enable_sleep_mode"] is True
    assert "enable_sleep_mode" not in platform.engine_options(colocated(config, release_memory="never"))


def test_an_option_that_breaks_the_platform_is_refused_by_name(config: Config) -> None:
    npu = PROVIDERS[1]
    assert npu.preflight(config, {}, {}) == []
    (line,) = npu.preflight(replace(config, vllm={"additional-config": {"weight_nz_mode": 2}}), {}, {})
    assert line.startswith("vllm.additional_config.weight_nz_mode: 2 ")
    (line,) = npu.preflight(colocated(replace(config, vllm={"enable-sleep-mode": False})), {}, {})
    assert line.startswith("vllm.enable_sleep_mode: False cannot be")


def test_an_option_that_the_vendor_would_ignore_is_refused_with_the_nearest_name(config: Config) -> None:
    chosen = replace(config, vllm={"additional_config": {"enable_cpu_bindings": True}})
    assert PROVIDERS[1].preflight(chosen, {}, {"vllm-ascend": "0.23.0.post1", "vllm": "0.23.0"}) == [
        "vllm.additional_config.enable_cpu_bindings: vllm-ascend 0.23.0.post1 reads no such option; did you mean enable_cpu_binding?"
    ]
    assert PROVIDERS[1].preflight(chosen, {}, {"vllm-ascend": "0.99"}) == []


def test_options_within_a_block_are_joined(config: Config) -> None:
    chosen = replace(config, vllm={"additional-config": {"enable_cpu_binding": True}, "max-num-seqs": 8})
    assert launch.engine_options(PROVIDERS[1], chosen) == {"additional_config": {"weight_nz_mode": 0, "enable_cpu_binding": True}, "max_num_seqs": 8}


def test_the_users_variables_join_and_contradictions_are_refused(platform: Platform, config: Config) -> None:
    own = replace(config, placement=replace(config.placement, environment={"NCCL_DEBUG": "INFO", "VLLM_LOGGING_LEVEL": "DEBUG"}))
    assert launch.environment(platform, "engine", own).items() >= {("NCCL_DEBUG", "INFO"), ("VLLM_LOGGING_LEVEL", "DEBUG")}
    variable = platform.visible_devices_variable
    for bad in ({"VLLM_WORKER_MULTIPROC_METHOD": "fork"}, {variable: "0"}):
        wrong = replace(config, placement=replace(config.placement, environment=bad))
        with pytest.raises(UserError, match=rf"placement\.environment\.{next(iter(bad))}: "):
            launch.environment(platform, "engine", wrong)


def test_an_outer_variable_that_contradicts_is_refused_with_both_values(config: Config) -> None:
    outer = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
    launch.check_outer(PROVIDERS[1], config, outer)
    with pytest.raises(UserError, match=r"environment variable PYTORCH_NPU_ALLOC_CONF: 'expandable_segments:True' contradicts.*=expandable_segments:False\)"):
        launch.check_outer(PROVIDERS[1], colocated(config), outer)


def test_devices_are_counted_without_the_vendors_packages(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ["nvidia0", "nvidia1", "nvidiactl", "davinci0", "davinci1", "davinci_manager"]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [self / name for name in nodes if Path(name).match(pattern)])
    monkeypatch.delenv(platform.visible_devices_variable, raising=False)
    assert platform.device_count() == 2
    monkeypatch.setenv(platform.visible_devices_variable, "1")
    assert platform.device_count() == 1
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [])
    assert platform.device_count() == 0  # what the variable names is not here
    assert "torch_npu" not in sys.modules


def test_a_missing_vendor_package_is_said_with_the_mend() -> None:
    with pytest.raises(PlatformError, match=r"torch_npu cannot be imported .*install CANN.*vime doctor --platform npu"):
        PROVIDERS[1].module()
    with pytest.raises(PlatformError, match=r"sees no CUDA device"):
        PROVIDERS[0].module()


# ---- with stand-ins ---------------------------------------------------------------------------------------------------------------------------------------


class Device:
    """What the providers call of `torch.npu`; computes on the host."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return lambda *arguments: self.calls.append(name)

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return 1

    def max_memory_allocated(self) -> int:
        return 3 * 2**30


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> tuple[NpuPlatform, Device, list[str]]:
    """An NPU provider whose vendor modules are stand-ins; the list holds what was imported, in order."""
    imported: list[str] = []
    device = Device()
    monkeypatch.setattr(torch, "npu", device, raising=False)
    for name in ("torch_npu", "torch_npu.contrib", "torch_npu.contrib.transfer_to_npu", "torch_npu._C", "torch_npu._C._distributed_c10d"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    def import_module(name: str) -> types.ModuleType:
        if not name.startswith("vime"):
            imported.append(name)
        return sys.modules.get(name) or types.ModuleType(name)

    monkeypatch.setattr("vime.platforms.npu.importlib.import_module", import_module)
    return NpuPlatform(), device, imported


def without_megatron(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "megatron"]:
        monkeypatch.delitem(sys.modules, name)


def test_megatron_is_brought_up_once_in_the_vendors_order(npu, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, _, imported = npu
    without_megatron(monkeypatch)
    monkeypatch.setattr("vime.platforms.npu.importlib.util.find_spec", lambda name: object())
    provider.bootstrap_megatron()
    provider.bootstrap_megatron()
    assert imported == ["torch_npu", "torch_npu.contrib.transfer_to_npu", "mindspeed.megatron_adaptor"]


def test_mindspeed_is_optional(npu, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, _, imported = npu
    without_megatron(monkeypatch)
    monkeypatch.setattr("vime.platforms.npu.importlib.util.find_spec", lambda name: None)
    provider.bootstrap_megatron()
    assert imported == ["torch_npu", "torch_npu.contrib.transfer_to_npu"]


def test_megatron_imported_before_the_bring_up_is_refused(npu, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, _, imported = npu
    monkeypatch.setitem(sys.modules, "megatron.core.transformer", types.ModuleType("megatron.core.transformer"))
    with pytest.raises(PlatformError, match=r"Megatron-Core \(megatron.* was imported before the NPU was brought up"):
        provider.bootstrap_megatron()
    assert imported == []


def test_a_group_gets_its_time_limit_before_it_is_made(npu, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, _, _ = npu
    made: list[tuple] = []

    class ProcessGroupHCCL:
        class Options:
            _timeout = None

        def __init__(self, store, rank, size, options):
            made.append((store, rank, size, options._timeout))

    monkeypatch.setattr(sys.modules["torch_npu._C._distributed_c10d"], "ProcessGroupHCCL", ProcessGroupHCCL, raising=False)
    provider.new_process_group("store", 1, 3, timedelta(seconds=9))
    assert made == [("store", 1, 3, timedelta(seconds=9))]


def test_a_device_is_named_by_its_physical_number(npu, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, device, _ = npu
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "6,3")
    assert provider.device_identity().endswith("/npu-3")
    assert provider.peak_memory_gib() == 3.0
    provider.synchronize()
    provider.empty_cache()
    provider.set_device(0)
    assert device.calls == ["synchronize", "empty_cache", "set_device"]


def test_a_shared_buffer_is_rebuilt_on_the_other_process_own_number_of_the_device(npu, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, _, _ = npu
    seen: list[list] = []
    arguments = [f"argument {index}" for index in range(15)]
    monkeypatch.setattr("torch.multiprocessing.reductions.reduce_tensor", lambda tensor: ("rebuild", tuple(arguments)))
    monkeypatch.setattr(provider, "device", lambda index: torch.device("cpu"))
    monkeypatch.setattr(provider, "rebuild", lambda: lambda *given: seen.append(list(given)) or torch.zeros(8, dtype=torch.uint8))
    shared = provider.share(8)
    assert provider.attach(shared.handle, None, 8).tensor.numel() == 8
    assert seen == [[*arguments[:6], 1, *arguments[7:]]]
    with pytest.raises(PlatformError, match="has 8 bytes where 16 were announced"):
        provider.attach(shared.handle, None, 16)


def test_version_files_of_several_generations_are_read(tmp_path: Path) -> None:
    texts = {
        "driver": ("Version=25.2.0\nascendhal_version=7.35.19\n", "25.2.0"),
        "cann8": ("# version: 1.0\nruntime_running_version=[8.5.0:CANN-8.5]\n", "8.5.0"),
        "toolkit": ("package_name=Ascend-cann-toolkit\nversion=9.1.0\narch=aarch64\n", "9.1.0"),
        "early": ("Version=9.1.0-beta.1\n", "9.1.0-beta.1"),
        "empty": ("", None),
    }
    for name, (text, version) in texts.items():
        (tmp_path / name).write_text(text)
        assert read_version([str(tmp_path / "absent"), str(tmp_path / name)]) == version


def test_the_allocators_newer_name_is_held_to_the_same(config: Config) -> None:
    with pytest.raises(UserError, match="environment variable PYTORCH_ALLOC_CONF: 'expandable_segments:True' contradicts"):
        launch.check_outer(PROVIDERS[0], colocated(config), {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})


@pytest.mark.parametrize("value", ["weight_nz_mode", None, [1]])
def test_additional_options_that_are_no_block_are_refused(value: object, config: Config) -> None:
    given = replace(config, vllm={"additional-config": value})
    assert PROVIDERS[1].preflight(given, {}, {}) == [f"vllm.additional_config: {value!r} is no block of options: give one, or remove it"]


@pytest.mark.parametrize("name", ["", "A B", "1A", "A=B"])
def test_a_variable_must_have_a_name(name: str, platform: Platform, config: Config) -> None:
    given = replace(config, placement=replace(config.placement, environment={name: "1"}))
    with pytest.raises(UserError, match="is no name of a variable"):
        launch.environment(platform, "engine", given)
