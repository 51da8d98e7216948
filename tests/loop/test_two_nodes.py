"""One run across two Ray nodes of this machine, each under an address of its own: trainers and engine meet over the nodes' addresses, not over one loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.loop.process import EXAMPLE, ROOT, events, finished, lines, settings
from vime.loop.cluster import free_port

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DISABLE_IMPORT_WARNING": "1"}


@contextmanager
def ray_node(address: str, *arguments: str) -> Iterator[None]:
    """A Ray node that stays in the foreground and is ended with everything it started."""
    with tempfile.TemporaryDirectory(prefix="vn-", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", f"--node-ip-address={address}", "--num-cpus=2", *arguments]
        command += ["--object-store-memory=100000000", "--include-dashboard=false"] if "--head" in arguments else ["--object-store-memory=100000000"]
        with (Path(scratch) / "log").open("wb") as log:
            node = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **ENVIRONMENT, "TMPDIR": scratch}, start_new_session=True
            )
        try:
            yield
        finally:
            family = [node, *psutil.Process(node.pid).children(recursive=True)] if node.poll() is None else [node]
            node.send_signal(signal.SIGTERM)
            _, alive = psutil.wait_procs([psutil.Process(process.pid) for process in family if psutil.pid_exists(process.pid)], 10)
            for process in alive:
                process.kill()
            node.wait(10)


@contextmanager
def two_nodes() -> Iterator[str]:
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(ray_node("127.0.0.1", "--head", f"--port={port}"))
        wait_for(port)
        stack.enter_context(ray_node("127.0.0.2", f"--address=127.0.0.1:{port}"))
        time.sleep(3)  # the second node announces itself; placement waits for the rest
        yield f"127.0.0.1:{port}"


def wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"no Ray head on port {port} after 60 s")


@pytest.mark.heavy
def test_a_run_spans_two_nodes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with two_nodes() as address:
        placement = {"placement__nodes": 2, "placement__devices_per_node": 2, "placement__ray_address": address}
        finished("train", EXAMPLE, *settings(parallel__data=2, placement__environment={"GLOO_SOCKET_IFNAME": "lo"}, **placement), out=run)
    assert [record["step"] for record in lines(run / "metrics.jsonl")] == [0, 1, 2]
    assert [sync["transport"] for sync in events(run, "weight_sync")] == ["broadcast"] * 4
