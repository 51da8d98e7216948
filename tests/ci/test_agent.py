"""Hooks of the agents' hosts: linted, and run with made-up devices, drivers and containers."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "ci" / "agent"
HOOKS = sorted((AGENT / "hooks").iterdir())
JOB = "01-job"


class Host:
    """A host with devices 4 to 7 of eight, a driver that answers, and a docker that writes down what it is asked."""

    def __init__(self, place: Path):
        self.place = place
        for name in ("bin", "dev", "scratch", "work"):
            (place / name).mkdir()
        for number in range(8):
            (place / "dev" / f"davinci{number}").touch()
        self.tool("npu-smi", "exit 0")
        self.tool("docker", f'printf "%s\\n" "$@" >> {place}/docker')
        self.tool("buildkite-agent", f'echo "$@" >> {place}/buildkite-agent')
        self.conf()

    def tool(self, name: str, body: str) -> None:
        path = self.place / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def conf(self, **values: str) -> None:
        told = {"KIND": "npu", "DEVICES": "4,5,6,7", "STATE": str(self.place / "state"), "SCRATCH": str(self.place / "scratch"), "MIN_FREE_GIB": "0", **values}
        (self.place / "a.conf").write_text("".join(f"VIME_AGENT_{name}={value}\n" for name, value in told.items()))

    def run(self, hook: str, after: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """A hook as the agent runs it: the environment hook is sourced."""
        own = {
            "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.place),
            "VIME_AGENT_CONF": str(self.place / "a.conf"),
            "VIME_AGENT_DEV": str(self.place / "dev"),
            "VIME_AGENT_GRACE_S": "1",
            "BUILDKITE_AGENT_NAME": "a",
            "BUILDKITE_JOB_ID": JOB,
        }
        command = f"source {AGENT / 'hooks' / hook}; {after}" if after else str(AGENT / "hooks" / hook)
        return subprocess.run(
            ["bash", "-c", command], cwd=self.place / "work", env={**own, **environment}, capture_output=True, text=True, check=False, timeout=60
        )

    @property
    def pids(self) -> Path:
        return self.place / "state" / "a.pids"


@pytest.fixture
def host(tmp_path) -> Host:
    return Host(tmp_path)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("path", [*HOOKS, *sorted(AGENT.glob("*.sh"))], ids=lambda path: path.name)
def test_hooks_are_clean(path):
    done = subprocess.run([str(Path(sys.executable).with_name("shellcheck")), "-x", str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_hook_can_be_run():
    assert [path.name for path in HOOKS] == ["command", "environment", "pre-command", "pre-exit"]
    assert all(os.access(path, os.X_OK) for path in HOOKS)


def test_a_job_sees_the_agents_devices_and_no_others(host):
    done = host.run("environment", "echo $ASCEND_RT_VISIBLE_DEVICES", VIME_DEVICES="4", ASCEND_RT_VISIBLE_DEVICES="0,1,2,3")
    assert done.stdout.strip() == "4,5,6,7"


@pytest.mark.parametrize("asked", ["8", "2"])
def test_a_class_that_the_agent_does_not_have_is_refused(host, asked):
    done = host.run("environment", "echo went on", VIME_DEVICES=asked)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the job asks for class {asked}, this agent has 4 devices" in done.stderr


def test_an_agent_without_a_file_is_refused(host):
    done = host.run("environment", VIME_AGENT_CONF=str(host.place / "none.conf"))
    assert (done.returncode, "none.conf is missing" in done.stderr) == (1, True)


def test_a_command_runs_as_it_is_and_ends_with_its_code(host):
    done = host.run("command", BUILDKITE_COMMAND="echo one\nexit 13")
    assert (done.returncode, done.stdout) == (13, "one\n")
    assert len(host.pids.read_text().split()) >= 1


def test_what_a_job_left_is_ended_by_its_recorded_pid(host):
    host.run("command", BUILDKITE_COMMAND=f"exec > /dev/null 2>&1; sleep 77 & echo $! > {host.place}/child; (sleep 78 &)")
    child = int((host.place / "child").read_text())
    assert runs(child)
    done = host.run("pre-exit")
    assert done.returncode == 0, done.stderr
    assert "ending 2 processes that the last job left" in done.stdout
    assert not runs(child)
    assert not host.pids.exists()


def test_the_next_job_cleans_up_after_an_agent_that_was_lost(host):
    host.run("command", BUILDKITE_COMMAND=f"exec > /dev/null 2>&1; sleep 77 & echo $! > {host.place}/child")
    child = int((host.place / "child").read_text())
    assert host.run("pre-command").returncode == 0
    assert not runs(child)


def test_a_pid_that_was_given_to_another_process_is_left_alone(host):
    with subprocess.Popen(["sleep", "77"], start_new_session=True) as other:
        host.pids.parent.mkdir()
        host.pids.write_text(f"{other.pid} 1\n")
        assert host.run("pre-command").returncode == 0
        assert runs(other.pid)
        other.kill()


def test_a_device_that_somebody_holds_is_told_and_nobody_is_killed(host):
    with (host.place / "dev" / "davinci5").open() as held:
        done = host.run("pre-command")
        assert held
    assert done.returncode == 13
    assert f"are held by processes {os.getpid()}" in done.stderr
    with (host.place / "dev" / "davinci0").open() as held:  # another agent's
        assert host.run("pre-command").returncode == 0
        assert held


def test_a_driver_that_does_not_answer_is_infra(host):
    host.tool("npu-smi", "exit 1")
    done = host.run("pre-command")
    assert (done.returncode, "npu-smi info does not answer" in done.stderr) == (13, True)


def test_a_full_disk_is_cleaned_oldest_first_and_is_infra_if_that_is_not_enough(host):
    results = host.place / "scratch" / "builds" / "a" / "vime" / "results"
    old, new = results / "old", results / "new"
    for path in (old, new, host.place / "scratch" / "cache" / "hf", host.place / "scratch" / "cache" / "pip"):
        path.mkdir(parents=True)
    long_ago = time.time() - 86400
    os.utime(old, (long_ago, long_ago))
    host.conf(MIN_FREE_GIB="99999999")
    done = host.run("pre-command")
    assert (done.returncode, "no space left on device" in done.stderr) == (13, True)
    assert not old.exists()
    assert new.exists()  # a build of this hour may still need it
    assert (host.place / "scratch" / "cache" / "hf").exists()
    assert not (host.place / "scratch" / "cache" / "pip").exists()


@pytest.mark.parametrize("scratch", ["/", "relative/x", ""])
def test_cleaning_refuses_what_is_no_scratch_folder(scratch):
    done = subprocess.run(["bash", str(AGENT / "clean-disk.sh"), scratch, "99999999", "--dry-run"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "removing" not in done.stdout


def test_an_image_gets_exactly_the_agents_devices(host):
    image = f"reg/vime-npu-a3@sha256:{'3' * 64}"
    done = host.run("command", BUILDKITE_COMMAND="true", VIME_IMAGE=image, VIME_DEVICES="4")
    assert done.returncode == 0, done.stderr
    words = (host.place / "docker").read_text().splitlines()
    devices = [after for word, after in itertools.pairwise(words) if word == "--device"]
    assert devices == [*(f"/dev/davinci{n}" for n in (4, 5, 6, 7)), "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert words[words.index("--name") + 1] == f"vime-{JOB}"
    assert image in words


def test_an_image_by_tag_is_refused(host):
    done = host.run("command", BUILDKITE_COMMAND="true", VIME_IMAGE="reg/vime-npu-a3:latest")
    assert (done.returncode, (host.place / "docker").exists()) == (1, False)
    assert "names no digest" in done.stderr


def test_a_lost_run_is_noted_with_the_host_and_the_container_is_stopped_by_its_name(host):
    host.run("pre-exit", VIME_IMAGE="x@sha256:1", BUILDKITE_COMMAND_EXIT_STATUS="13", BUILDKITE_STEP_KEY="run:c:100", BUILDKITE_RETRY_COUNT="1")
    assert (host.place / "buildkite-agent").read_text().startswith("meta-data set vime:lost:run:c:100:1 ")
    assert (host.place / "docker").read_text().split() == ["stop", "--time", "20", f"vime-{JOB}"]
    (host.place / "buildkite-agent").unlink()
    host.run("pre-exit", BUILDKITE_COMMAND_EXIT_STATUS="1")
    assert not (host.place / "buildkite-agent").exists()


# ---- images ------------------------------------------------------------------------------------------------------------------------------------------
def build_image(place: Path, digest: str) -> subprocess.CompletedProcess[str]:
    place.joinpath("bin").mkdir(exist_ok=True)
    for name, body in (
        ("docker", f'printf "%s\\n" "$@" > {place}/docker; echo \'{{"containerimage.digest": "{digest}"}}\' > image-vime-npu-a3.json'),
        ("buildkite-agent", f'echo "$@" >> {place}/agent; cat >> {place}/agent'),
    ):
        (place / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (place / "bin" / name).chmod(0o755)
    words = ["bash", str(ROOT / "ci" / "docker" / "build.sh"), "reg/team/vime-npu-a3", "ci/docker/Dockerfile.npu", "CHIP=a3"]
    environment = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "BUILDKITE_COMMIT": "abc"}
    return subprocess.run(words, cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_an_image_is_pushed_and_its_digest_told(tmp_path):
    digest = f"sha256:{'a' * 64}"
    done = build_image(tmp_path, digest)
    assert (done.returncode, done.stdout.strip()) == (0, f"reg/team/vime-npu-a3@{digest}"), done.stderr
    words = (tmp_path / "docker").read_text().splitlines()
    assert words[words.index("--build-arg") + 1] == "CHIP=a3"
    assert words[words.index("--tag") + 1] == "reg/team/vime-npu-a3:abc"
    assert f"meta-data set image:vime-npu-a3 {digest}" in (tmp_path / "agent").read_text()
    assert f"digest: {digest}" in (tmp_path / "agent").read_text()


def test_an_image_without_a_digest_is_an_error(tmp_path):
    done = build_image(tmp_path, "sha256:12")
    assert (done.returncode, "tells no digest" in done.stderr) == (1, True)


def test_tools_of_the_hooks_are_here():
    assert all(shutil.which(name) for name in ("fuser", "setsid", "ps"))
