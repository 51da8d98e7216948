"""What a machine offers: devices allowed by the caller, the declared kind, and a CPU's slots by memory and cores."""

from __future__ import annotations

import pytest

from e2e import machine
from e2e.leases import LeaseError
from e2e.machine import Found, allowed, offer, wait_for_memory
from matrix.declarations import Hardware
from matrix.loader import Matrix, load

NPU = {
    "name": "a2",
    "title": "Atlas 800T A2",
    "platform": "npu",
    "devices_per_node": 8,
    "device_names": ["910B"],
    "device_memory_gib": 64.0,
    "visible_devices": "ASCEND_RT_VISIBLE_DEVICES",
    "ray_resource": "NPU",
    "buildkite": {"queue": "a2", "classes": [2, 4, 8]},
    "image": {"name": "vime-a2", "digest": "unbuilt"},
    "contiguous": True,
    "twins": True,
    "versions": {"vllm": "0.23.0"},
    "limits": {"start_s": 3.0, "stall_s": 1.5, "wall_s": 20.0},
}
EIGHT = Found(8, ("910B1",) * 8, "npu-smi info -m")


@pytest.fixture
def npu() -> Hardware:
    return Hardware.model_validate(NPU)


def test_without_a_variable_every_device_is_allowed(npu: Hardware):
    assert offer(npu, {}, lambda platform: EIGHT).devices == tuple(range(8))


def test_the_variable_narrows_and_an_empty_one_allows_nothing(npu: Hardware):
    assert offer(npu, {"ASCEND_RT_VISIBLE_DEVICES": "7, 4,5"}, lambda platform: EIGHT).devices == (4, 5, 7)
    assert offer(npu, {"ASCEND_RT_VISIBLE_DEVICES": ""}, lambda platform: EIGHT).devices == ()
    assert offer(npu, {"CUDA_VISIBLE_DEVICES": "1"}, lambda platform: EIGHT).devices == tuple(range(8))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,8", "'8' is none of the devices 0 to 7"),
        ("GPU-3f2a", "'GPU-3f2a' is none"),
        ("-1", "'-1' is none"),
        ("2,2", "named twice"),
        ("²", "'²' is none"),
        ("0-3", "'0-3' is none"),
    ],
)
def test_a_variable_that_cannot_be_meant_is_refused_with_its_value(text: str, said: str):
    with pytest.raises(LeaseError, match=said) as caught:
        allowed("CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": text}, 8)
    assert f"CUDA_VISIBLE_DEVICES={text}" in str(caught.value)


def test_a_machine_without_the_devices_says_where_it_looked(npu: Hardware):
    here = offer(npu, {}, lambda platform: Found(0, (), "there is no /dev/davinci<N>"))
    assert (here.devices, here.lacks) == ((), "no Atlas 800T A2 here: there is no /dev/davinci<N>")


def test_devices_of_another_kind_are_not_the_declared_hardware(npu: Hardware):
    here = offer(npu, {}, lambda platform: Found(8, ("Ascend950",) * 8, "npu-smi info -m"))
    assert here.lacks == "this machine has Ascend950, not 910B (npu-smi info -m)"


@pytest.mark.parametrize(
    ("name", "declared", "is_it"),
    [
        ("910B1", "910B", True),
        ("Ascend 910B4-1", "910B", True),
        ("Ascend910", "Ascend910", True),
        ("Ascend910_9391", "Ascend910", True),
        ("Ascend910B3", "Ascend910", False),
        ("910B3", "Ascend910", False),
        ("Ascend910", "910B", False),
        ("Ascend950PR", "Ascend950PR", True),
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("NVIDIA A100-SXM4-80GB", "A100", True),
        ("NVIDIA H200", "H20", False),
        ("NVIDIA GH200 480GB", "H200", False),
    ],
)
def test_a_driver_s_name_is_of_the_declared_chip_and_no_other(npu: Hardware, name: str, declared: str, is_it: bool):
    here = offer(npu.model_copy(update={"device_names": [declared]}), {}, lambda platform: Found(8, (name,) * 8, "asked"))
    assert (here.lacks is None) == is_it


def test_no_two_declared_machines_of_a_platform_take_each_other_s_devices():
    """Except machines of one chip, which differ in how they are built."""
    declared = [hardware.value for hardware in load().hardware.values() if hardware.value.device_names]
    for one in declared:
        for other in declared:
            if one.platform == other.platform and one.chip != other.chip:
                found = Found(8, (other.device_names[0],) * 8, "asked")
                assert offer(one, {}, lambda platform, found=found: found).lacks, f"{one.name} takes the devices of {other.name}"


def test_this_machine_is_probed_without_torch():
    for platform in ("cuda", "npu"):
        found = machine.probed(platform)
        assert found.count == 0 or found.how in ("nvidia-smi", "npu-smi info -m")


@pytest.mark.parametrize(
    ("per_slot", "memory", "cores", "slots"), [(6.0, 24.0, 8, 4), (6.0, 13.0, 8, 2), (6.0, 24.0, 1, 2), (1.0, 2.5, 8, 2), (None, 1.0, 8, 4)]
)
def test_a_cpu_s_slots_are_what_memory_and_cores_carry(
    matrix: Matrix, monkeypatch: pytest.MonkeyPatch, per_slot: float | None, memory: float, cores: int, slots: int
):
    monkeypatch.setattr(machine, "memory_gib", lambda: memory)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    cpu = matrix.hardware["cpu"].value.model_copy(update={"device_memory_gib": per_slot, "devices_per_node": 4})
    assert offer(cpu).devices == tuple(range(slots))


def test_a_machine_too_small_for_one_slot_says_both_numbers(matrix: Matrix, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "memory_gib", lambda: 3.0)
    here = offer(matrix.hardware["cpu"].value.model_copy(update={"device_memory_gib": 4.0}))
    assert here.lacks == "this machine has 3.0 GiB; one slot of cpu takes 4"


def test_a_run_waits_for_memory_that_other_work_holds(monkeypatch: pytest.MonkeyPatch):
    free, said = iter([1.0, 1.0, 9.0]), list[str]()
    monkeypatch.setattr(machine, "free_gib", lambda: next(free))
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: None)
    wait_for_memory(4.0, "cell", 60, said.append)
    assert said == ["waiting for 4 GiB of memory; 1.0 GiB are free"]
    monkeypatch.setattr(machine, "free_gib", lambda: 1.0)
    with pytest.raises(LeaseError, match=r"waited 0 s for 4 GiB of memory in vain; 1\.0 GiB are free"):
        wait_for_memory(4.0, "cell", 0, said.append)


def test_memory_of_this_machine_is_a_sensible_number():
    assert 0 < machine.free_gib() <= machine.memory_gib() < 1 << 20
