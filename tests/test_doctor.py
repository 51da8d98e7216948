"""The doctor's judgement on made-up machines, and its real run on this one."""

from __future__ import annotations

import dataclasses
import json
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vime import machine as machine_module
from vime.doctor import ALL, PLATFORMS, Check, diagnose, missing, render, report, requirements
from vime.errors import UserError
from vime.machine import NPU_CONTROL_NODES, Accelerators, Gpu, Machine, normal, nvidia, packages, read_gpus, read_machine
from vime.npu_smi import Chip
from vime.probes import Member, ask_all, computing, hub, sharing, talking
from vime.version_set import OUTSIDE, compare, read, same


def fitting(platform: str) -> dict[str, str]:
    """A package set that satisfies `vime[platform]` exactly."""
    out = {"transformers": "5.0.0", "tokenizers": "0.20", "torch": "2.13.0"}
    for requirement in requirements(platform):
        out[normal(requirement.name)] = next(iter(requirement.specifier)).version
    return out


def cpu_machine(**changes: object) -> Machine:
    facts = Machine(
        python="3.11.7",
        architecture="x86_64",
        system="Linux",
        cores=2,
        cpu_flags=frozenset({"avx2", "avx512f", "avx512_bf16"}),
        memory_gib=24,
        memory_free_gib=20,
        shm_gib=8,
        disk_free_gib=100,
        open_files=20000,
        temporary="/tmp",
        packages={**fitting("cpu"), "torch": "2.13.0+cpu"},
    )
    return dataclasses.replace(facts, **changes)  # type: ignore[arg-type]


def npu_machine(**changes: object) -> Machine:
    seen = Accelerators("/usr/local/bin/npu-smi", ("0", "1"), ("davinci0", "davinci1", *NPU_CONTROL_NODES))
    return cpu_machine(**{"packages": fitting("npu"), "npu": seen, "cann": "/usr/local/Ascend/cann", **changes})


def lacks(facts: Machine, platform: str) -> dict[str, Check]:
    return {check.name: check for check in missing(diagnose(facts), platform)}


def test_each_platform_can_be_ready() -> None:
    cuda = cpu_machine(packages=fitting("cuda"), nvidia=Accelerators("/usr/bin/nvidia-smi", ("NVIDIA H100, 81559 MiB, 570.1",), ("/dev/nvidia0",)))
    for facts, platform in ((cpu_machine(), "cpu"), (cuda, "cuda"), (npu_machine(), "npu")):
        assert lacks(facts, platform) == {}
        assert all(lacks(facts, other) for other in PLATFORMS if other != platform), "one machine's set must not pass for another platform"


@pytest.mark.parametrize(
    ("changes", "platform", "name", "words"),
    [
        ({"python": "3.10.4"}, "cpu", "python", "install Python 3.11"),
        ({"system": "Darwin"}, "cpu", "system", "Linux"),
        ({"shm_gib": None}, "cpu", "shared memory", "mount"),
        ({"cpu_flags": frozenset({"sse4_2"})}, "cpu", "cpu instructions", "AVX2"),
        ({"architecture": "riscv64"}, "cpu", "cpu instructions", "no CPU build"),
    ],
)
def test_what_a_machine_lacks_is_named_with_its_mend(changes: dict[str, object], platform: str, name: str, words: str) -> None:
    found = lacks(cpu_machine(**changes), platform)
    assert found.keys() == {name}
    assert words in found[name].mend


def with_package(**versions: str | None) -> Machine:
    changed = {**cpu_machine().packages, **{normal(name): version for name, version in versions.items()}}
    return cpu_machine(packages={name: version for name, version in changed.items() if version is not None})


@pytest.mark.parametrize(
    ("versions", "name", "words"),
    [
        ({"ray": "2.10.0"}, "ray", "ray[default]==2.60.0"),
        ({"megatron_core": None}, "megatron-core", "megatron-core==0.16.1"),
        ({"torch": "2.13.0"}, "torch build", "CPU build"),
        ({"torchvision": "0.28.0"}, "wheels for CUDA", "pip uninstall -y torchvision"),
        ({"vllm": "0.33.0"}, "one vllm", "uninstall both"),
        ({"torch_npu": "2.13.0"}, "torch_npu without CANN", "TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
        ({"transformers": None}, "transformers", "comes with vLLM"),
    ],
)
def test_a_wrong_package_is_named_with_its_mend(versions: dict[str, str | None], name: str, words: str) -> None:
    found = lacks(with_package(**versions), "cpu")
    assert found.keys() == {name}
    assert words in found[name].found + found[name].mend


def test_a_cpu_build_of_torchvision_is_left_alone() -> None:
    assert lacks(with_package(torchvision="0.28.0+cpu"), "cpu") == {}


@pytest.mark.parametrize(
    ("seen", "cann", "name"),
    [
        (Accelerators(), "/cann", "ascend devices"),
        (Accelerators("/npu-smi", ("0",), ("davinci0", "davinci_manager", "devmm_svm")), "/cann", "ascend control"),
        (Accelerators(None, (), ("davinci0", *NPU_CONTROL_NODES)), "/cann", "npu-smi"),
        (Accelerators("/npu-smi", (), ("davinci0", *NPU_CONTROL_NODES), "dcmi model initialized failed"), "/cann", "npu-smi"),
        (Accelerators("/npu-smi", ("0",), ("davinci0", *NPU_CONTROL_NODES)), None, "CANN"),
    ],
)
def test_what_an_npu_host_lacks(seen: Accelerators, cann: str | None, name: str) -> None:
    assert name in lacks(npu_machine(npu=seen, cann=cann), "npu")


def test_narrow_machines_get_a_note_not_a_refusal() -> None:
    notes = {check.name: check for check in diagnose(cpu_machine(memory_free_gib=2.0, shm_gib=0.0625, open_files=256, cores=1)) if check.status == "note"}
    assert {"memory", "shared memory", "open files", "cores"} <= notes.keys()
    assert "--shm-size" in notes["shared memory"].mend
    assert lacks(cpu_machine(memory_free_gib=2.0), "cpu") == {}


def test_shared_requirements_are_one_check() -> None:
    checks = diagnose(cpu_machine())
    assert [check.platforms for check in checks if check.name == "ray"] == [ALL]
    assert len({(check.name, check.platforms) for check in checks}) == len(checks)


def test_a_tool_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the driver' >&2\nexit 9\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "could not communicate" in lacks(cpu_machine(nvidia=nvidia()), "cuda")["nvidia devices"].found


def test_a_tool_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "npu-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(machine_module, "TOOL_TIMEOUT_S", 0.2)
    assert machine_module.npu().fault == "no answer within 0.2 s"


def test_the_first_copy_of_a_package_counts(tmp_path: Path) -> None:
    for folder, version in (("first", "1.0"), ("second", "2.0")):
        info = tmp_path / folder / f"Some_Name-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Some_Name\nVersion: {version}\n")
    assert packages([str(tmp_path / "first"), str(tmp_path / "second")]) == {"some-name": "1.0"}


def test_this_machine_is_ready_for_the_cpu_platform() -> None:
    facts = read_machine()
    assert facts.cores >= 1 and facts.memory_gib > facts.memory_free_gib > 0 and facts.packages["torch"]
    assert report(diagnose(facts))["platforms"]["cpu"] == {"ready": True, "missing": []}


def vime(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vime.cli", *arguments], capture_output=True, text=True, timeout=60)


def test_command_says_ready_and_imports_nothing_heavy() -> None:
    done = vime("doctor", "--platform", "cpu")
    assert done.returncode == 0, done.stderr
    assert "cpu: ready" in done.stdout
    heavy = ("torch", "ray", "vllm", "megatron", "transformers")
    code = f"import sys; from vime.doctor import run; run(None, True); print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    quiet = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert quiet.stderr.strip() == "[]"
    assert json.loads(quiet.stdout)["platforms"]["cpu"]["ready"] is True


def test_brackets_of_a_mend_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    render([Check("torch build", "missing", "[none]", frozenset({"cuda"}), "pip install 'vime[cuda]'")], ("cuda",))
    assert "[none]  pip install 'vime[cuda]'" in capsys.readouterr().out


def test_exit_code_is_a_preflight() -> None:
    absent = "npu" if missing(diagnose(), "npu") else "cuda"
    done = vime("doctor", "--platform", absent)
    assert done.returncode == 1
    assert f"{absent}: not ready" in done.stdout


def test_unknown_platform_is_refused() -> None:
    done = vime("doctor", "--platform", "gpu")
    assert (done.returncode, done.stderr) == (2, "vime: error: --platform gpu: the doctor knows cpu, cuda, npu\n")


# ---- version sets and probes ------------------------------------------------------------------------------------------------------------------------------

VERSIONS = Path(__file__).parents[1] / "matrix" / "versions.yaml"


def test_a_machine_is_held_to_a_version_set(tmp_path: Path) -> None:
    wanted = read(VERSIONS, "cann-91")
    have = {normal(name): version for name, version in wanted.items() if name not in OUTSIDE}
    outside = {"cann": wanted["cann"], "ascend-driver": "25.2.0", "ascend-firmware": "7.7"}
    right = list(compare(wanted, npu_machine(packages=have), outside, frozenset({"npu"})))
    assert {check.status for check in right} == {"ok"}
    wrong = {**have, "torch-npu": "2.10.0.post2", "vllm": "0.23.0+empty"}
    found = {check.name: check for check in compare(wanted, npu_machine(packages=wrong), {"cann": "8.5.0"}, frozenset({"npu"})) if check.status != "ok"}
    assert found.keys() == {"torch_npu 2.10.0.post4", f"cann {wanted['cann']}", "ascend-driver", "ascend-firmware"}
    assert found["torch_npu 2.10.0.post4"].mend == "the tested set has 2.10.0.post4: install that one"
    assert found["ascend-driver"].status == "note"


@pytest.mark.parametrize(
    ("have", "wanted", "right"),
    [
        ("25.2.0", ">=25.2,<26", True),
        ("25.0.rc1", ">=25.2,<26", False),
        ("26.0", ">=25.2,<26", False),
        ("V25", ">=25.2", False),
        ("2.10.0+cpu", "2.10.0", True),
        ("2.10.0.post2", "2.10.0.post4", False),
        ("9.1.0-beta.1", "9.1.0", False),
        ("8.5.T60", "8.5.T60", True),
        ("1.0", "=>1", False),
    ],
)
def test_a_version_is_the_wanted_one_or_in_the_range(have: str, wanted: str, right: bool) -> None:
    assert same(have, wanted) == right


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version_sets: [{name: x, versions: {torch: 2.10}}]", r"torch: 2.1 of set x is a number to YAML.*quotes"),
        ("version_sets: [{name: x, versions: [torch]}]", "give package: version"),
        ("version_sets: [{name: x}]", "no list `version_sets`"),
        ("version_sets: 3", "no list `version_sets`"),
        ("\xff\xfe", "no list `version_sets`"),
        ("", "no list `version_sets`"),
    ],
)
def test_a_version_file_that_cannot_be_read_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "sets.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=says):
        read(tmp_path / "sets.yaml", "x")


def test_an_unknown_version_set_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--set cann-99: .*versions.yaml has .*cann-91"):
        read(VERSIONS, "cann-99")
    (tmp_path / "bad.yaml").write_text("sets: []\n")
    with pytest.raises(UserError, match="no list `version_sets`"):
        read(tmp_path / "bad.yaml", "x")
    with pytest.raises(UserError, match="No such file"):
        read(tmp_path / "absent.yaml", "x")


def test_ill_and_busy_devices_are_named() -> None:
    chips = (Chip(0, 0, 0, "910B1", "OK", "C1", 3000, 65536), Chip(1, 1, 0, "910B1", "Alarm", "C2", 60000, 65536))
    seen = Accelerators("/npu-smi", ("0", "1"), ("davinci0", *NPU_CONTROL_NODES), "", chips, "25.2.0")
    checks = {check.name: check for check in diagnose(npu_machine(npu=seen))}
    assert checks["npu-smi"].found == "2 devices, driver 25.2.0"
    assert checks["ascend health"].found == "device 1 (910B1): Alarm"
    assert checks["ascend memory"].found == "device 1: 60000 of 65536 MB"


def test_versions_and_probes_want_a_platform() -> None:
    for arguments, says in ((["--probe"], "--probe: name the platform too"), (["--versions", str(VERSIONS)], "--versions and --set go together")):
        done = vime("doctor", *arguments)
        assert done.returncode == 2
        assert says in done.stderr


def test_the_cpu_is_held_to_a_set_it_does_not_have() -> None:
    done = vime("doctor", "--platform", "cpu", "--versions", str(VERSIONS), "--set", "cann-91", "--json")
    assert done.returncode == 1
    assert "vllm-ascend 0.23.0.post1" in json.loads(done.stdout)["platforms"]["cpu"]["missing"]


@pytest.mark.heavy
def test_this_machines_slots_compute_talk_and_share_memory() -> None:
    done = vime("doctor", "--platform", "cpu", "--probe", "--json")
    assert done.returncode == 0, done.stderr
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["device probe"]["found"].startswith("2 computed rightly")
    assert found["gloo ping"]["status"] == found["shared memory of a device"]["status"] == "ok"


class Answers:
    """A process that answers what it is told to."""

    def __init__(self, *answers: tuple[bool, object]):
        self.answers = list(answers)

    def ask(self, *_: object) -> tuple[bool, object]:
        return self.answers.pop(0)

    def send(self, *_: object) -> None:
        pass

    def receive(self, *_: object) -> tuple[bool, object]:
        return self.answers.pop(0)


def test_what_a_probe_finds_wrong_is_named_with_its_device() -> None:
    good, bad, only = (True, 0.1), (False, "npu device 0 computes wrongly"), frozenset({"npu"})
    assert computing([Answers(good), Answers(bad)], only).found == "1: npu device 0 computes wrongly"
    assert talking([Answers(good), Answers((False, "no answer within 60 s"))], "hccl", only).found == "1: no answer within 60 s"
    assert sharing(Answers((True, "handle")), Answers((False, "other bytes")), only).status == "missing"
    assert sharing(Answers((False, "cannot")), Answers(), only).found == "cannot"


NVIDIA = {
    "535": ("NVIDIA A100-SXM4-80GB, 81920 MiB, 535.104.05, 4 MiB", Gpu("NVIDIA A100-SXM4-80GB", 81920, 4, "535.104.05")),
    "570": ("NVIDIA H200, 143771 MiB, 570.124.06, 140001 MiB", Gpu("NVIDIA H200", 143771, 140001, "570.124.06")),
    "mig": ("NVIDIA H100 80GB HBM3, [Insufficient Permissions], 550.54.15, [Insufficient Permissions]", Gpu("NVIDIA H100 80GB HBM3", None, None, "550.54.15")),
    "unified": ("NVIDIA GB10, [N/A], 580.95.05, [N/A]", Gpu("NVIDIA GB10", None, None, "580.95.05")),
}


@pytest.mark.parametrize("name", sorted(NVIDIA))
def test_nvidia_tables_of_several_generations(name: str) -> None:
    text, gpu = NVIDIA[name]
    assert read_gpus(f"{text}\n{text}") == (gpu, gpu)
    assert read_gpus("NVIDIA-SMI has failed") == ()


def test_a_busy_gpu_is_named() -> None:
    text, gpu = NVIDIA["570"]
    checks = {check.name: check for check in diagnose(cpu_machine(nvidia=Accelerators("/nvidia-smi", (text,), ("nvidia0",), gpus=(gpu,))))}
    assert checks["nvidia memory"].found == "device 0: 140001 of 143771 MiB"


def test_the_hub_is_asked_where_it_is_configured_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub(frozenset({"npu"})).status == "ok"
    closed = hub(frozenset({"npu"}))
    assert (closed.status, "HF_ENDPOINT" in closed.mend) == ("note", True)


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 9", "npu-smi ended with code 9 and said nothing"),
        ("exit 0", "`npu-smi info` lists no chip: no output"),
        ("printf '\\377\\376'; exit 3", "\ufffd"),
    ],
)
def test_an_npu_tool_that_says_nothing_is_a_fault(script: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "npu-smi", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert says in machine_module.npu().fault


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "exit 0"])
def test_an_nvidia_tool_without_devices_is_a_fault(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "nvidia-smi", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = nvidia()
    assert seen.fault
    assert "nvidia devices" in lacks(cpu_machine(packages=fitting("cuda"), nvidia=seen), "cuda")


def test_a_device_left_out_is_not_judged_and_one_that_dropped_out_is_noticed() -> None:
    chips = (Chip(0, 0, 0, "910B1", "OK", "C1", 3000, 65536), Chip(1, 1, 0, "910B1", "Alarm", "C2", 3000, 65536))
    nodes = ("davinci0", "davinci1", "davinci2", *NPU_CONTROL_NODES)
    for visible, ill in ((None, True), (("0",), False), (("0", "1"), True)):
        checks = {check.name: check for check in diagnose(npu_machine(npu=Accelerators("/npu-smi", ("0", "1"), nodes, "", chips, "25.2.0", visible=visible)))}
        assert ("ascend health" in checks) == ill
        assert checks["ascend devices listed"].found == "3 device nodes, but npu-smi lists 2"
    warned = (dataclasses.replace(chips[1], health="Warning"),)
    checks = {check.name: check for check in diagnose(npu_machine(npu=Accelerators("/npu-smi", ("1",), nodes, "", warned, "25.2.0")))}
    assert checks["ascend health"].status == "note"


def test_a_probe_that_is_not_tried_says_so() -> None:
    done = vime("doctor", "--platform", "npu", "--probe", "--json")
    assert done.returncode == 1
    assert next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "device probe")["found"].startswith("not tried: ")


class Process:
    """A process of a probe that is `code` ended, or (None) still runs."""

    def __init__(self, code: int | None):
        self.exitcode = code

    def is_alive(self) -> bool:
        return self.exitcode is None


def member(code: int | None, *answers: tuple[str, bool, object]) -> Member:
    made = Member("cpu", {}, 0, 1, ("127.0.0.1", 1))
    made.process = Process(code)  # type: ignore[assignment]
    for answer in answers:
        made.answers.put(answer)
    return made


def test_a_dead_probe_is_told_at_once_and_its_last_words_count() -> None:
    begin = time.monotonic()
    assert member(-9).receive("ping", 60) == (False, "the process ended with code -9")
    assert member(1, ("ping", False, "out of memory")).receive("ping", 60) == (False, "out of memory")
    assert time.monotonic() - begin < 10


def test_an_answer_that_came_too_late_is_not_taken_for_the_next() -> None:
    late = member(None, ("health", True, 0.1), ("ping", True, 3.5))
    assert late.receive("ping", 5) == (True, 3.5)


def test_devices_that_hang_cost_the_time_limit_once() -> None:
    begin = time.monotonic()
    answers = ask_all([member(None) for _ in range(4)], "health", 0.5)
    assert answers == [(False, "no answer to 'health' in time")] * 4
    assert time.monotonic() - begin < 2.5
