"""A run that goes on is nobody else's: no second driver of its directory, and nobody without its token on its Ray cluster, whose head listens everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.loop.command import Command, command
from tests.loop.faulty import Fault
from tests.loop.process import EXAMPLE, Vime, attempts, settings

__all__ = ["command"]
pytestmark = pytest.mark.heavy
ASK = "import sys; from ray._raylet import GcsClient; print(len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)), 'node')"


def intruder(address: str, **token: str) -> str:
    """What another process of this machine is told about the cluster's nodes."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    done = subprocess.run([sys.executable, "-c", ASK, address], env=kept | token, capture_output=True, text=True, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else done.stderr


def test_a_run_that_goes_on_admits_nobody_else(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    fault = Fault(at="trainer.train", do="hang", flag=str(tmp_path / "flag"))
    with Vime("train", EXAMPLE, *settings(), out=out, fault=fault) as run:
        run.until(Path(fault.flag).exists, "the first step")
        address, token = head(run.processes())
        assert intruder(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token) == "1 node"
        assert "authenticat" in intruder(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
        assert "authenticat" in intruder(address, RAY_AUTH_MODE="disabled")
        assert not any(token in word for process in run.processes() for word in process.cmdline())  # other users may read those
        assert [path for path in [*run.scratch.rglob("*"), *out.rglob("*")] if path.is_file() and token in path.read_text(errors="replace")] == []
        done = command("train", "--resume", out)
        assert done.code == 2
        assert done.message == f"run directory {out}: another vime process is writing it: wait for its end, or end it"
    assert token not in run.output
    assert not [path for path in home.rglob("*") if "ray" in str(path.relative_to(home)).lower()]
    assert len(attempts(out)) == 1


def head(processes: list[psutil.Process]) -> tuple[str, str]:
    """Address and token of the cluster's head."""
    (address,) = {word.removeprefix("--gcs-address=") for process in processes for word in process.cmdline() if word.startswith("--gcs-address=")}
    return address, next(process.environ()["RAY_AUTH_TOKEN"] for process in processes if process.name() == "gcs_server")
