"""The Ray cluster and the workers of one run: started together, ended together."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from vime.config.check import world_size
from vime.config.tree import Config
from vime.errors import Interrupted, RunError
from vime.interrupts import check, kept_handlers, shielded
from vime.loop.actors import ENGINE, ENGINE_THREADS, TRAINER, Remote
from vime.loop.placement import Seat, Seats, check_devices, place
from vime.loop.workers import Worker, gather
from vime.platforms import launch
from vime.platforms.base import Platform, Role

LOOPBACK = "127.0.0.1"
SCRATCH = "vime-ray-"  # then the driver's process id: what a killed run leaves can be told from a running one's
# Ray's head listens on every interface, whatever address it is given, and does what it is told. So only those may tell it who have the token of this process;
# given in the environment, it is inherited by all of the cluster's processes, and Ray writes none into the home folder.
TOKEN = secrets.token_hex(32)
OBJECT_STORE_BYTES = 512 * 2**20  # a step's samples of a tiny model are kilobytes; Ray spills beyond this


@dataclass
class Workers:
    """The running workers, in rank order and in engine order."""

    trainers: list[Worker]
    engines: list[Worker]


class Cluster:
    """Context manager of a run's Ray cluster. A cluster of our own is ended with it; one that `placement.ray_address` names is only left.

    `logs`: where the last lines of every worker are kept when the run breaks.
    """

    def __init__(self, config: Config, platform: Platform, logs: Path | None = None):
        self.config, self.platform, self.logs = config, platform, logs
        self._scratch: Path | None = None
        self._seats: Seats

    def __enter__(self) -> Self:
        os.environ.update(self.platform.environment("driver", self.config))
        per_node = self.config.placement.devices_per_node or self.platform.device_count()
        devices = check_devices(self.config, per_node, self.platform.name)
        address = self.config.placement.ray_address
        common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": f"vime-{os.getpid()}"}
        if address:
            _init(address=address, **common)
            return self
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
        remove_left_scratch()
        self._scratch = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-"))  # Ray's sockets need a short path
        resource = self.platform.ray_resource
        try:
            _init(
                address="local",
                num_cpus=max(devices, 1) if resource == "CPU" else None,
                num_gpus=devices if resource == "GPU" else None,  # the two resources that Ray wants by name
                resources={resource: float(devices)} if resource not in ("CPU", "GPU") else None,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(self._scratch),
                **common,
            )
        except BaseException as error:
            self._end()
            if isinstance(error, Exception):
                raise RunError("ray start", f"{type(error).__name__}: {error}") from error
            raise
        return self  # a signal noted until here is raised by the first wait, inside the `with`

    def start(self, *, engines: bool = True) -> Workers:
        """Place and create every worker, then start trainers and engines side by side. Supervised training has no engines."""
        check()
        self._seats = place(self.config, self.platform, self.config.timeouts.placement_s)
        ranks = range(world_size(self.config))
        workers = Workers([self._create(TRAINER, f"trainer {rank}", "trainer", self._seats.trainers[rank]) for rank in ranks], [])
        if engines:
            workers.engines = [self._create(ENGINE, f"engine {index}", "engine", seat) for index, seat in self._seats.engines.items()]
        address, port = self._meeting_point(workers.trainers[0])
        pending = [worker.call("start", self.config, rank, len(ranks), address, port) for rank, worker in enumerate(workers.trainers)]
        pending += [worker.call("start", self.config, index, self.config.model.path) for index, worker in enumerate(workers.engines)]
        gather(pending, self.config.timeouts.start_s, "start")
        return workers

    def restart_engine(self, index: int) -> Worker:
        """A fresh engine in the place of a dead one; it is dirty until the next full sync."""
        worker = self._create(ENGINE, f"engine {index}", "engine", self._seats.engines[index])
        worker.call("start", self.config, index, self.config.model.path).result(self.config.timeouts.start_s, "engine start")
        return worker

    def _meeting_point(self, first: Worker) -> tuple[str, int]:
        """Address and free port where the trainers meet: rank 0's node, or the loopback interface where there is only one node."""
        if self.config.placement.nodes == 1:
            return LOOPBACK, free_port()
        return first.call("node_endpoint").result(self.config.timeouts.start_s, "start")

    def _create(self, target: str, name: str, role: Role, seat: Seat) -> Worker:
        import ray

        environment = launch.environment(self.platform, role, self.config) | seat.environment
        threads = {"max_concurrency": ENGINE_THREADS} if role == "engine" else {}
        check()
        actor = ray.remote(Remote).options(**seat.options, **threads, runtime_env={"env_vars": environment}, max_restarts=0, max_task_retries=0).remote(target)
        return Worker(actor, name)

    def worker_logs(self, last_lines: int = 200) -> str:
        """The last lines that each worker wrote."""
        if self._scratch is None:
            return ""
        parts = []
        for file in sorted(self._scratch.glob("session_latest/logs/worker-*.err")):
            lines = file.read_text(errors="replace").strip().splitlines()[-last_lines:]
            if lines:
                parts.append(f"--- {file.name}\n" + "\n".join(lines) + "\n")
        return "".join(parts)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and self.logs is not None:
            with contextlib.suppress(OSError):
                self.logs.write_text(self.worker_logs())
        self._end()

    def _end(self) -> None:
        import ray

        with shielded():
            with contextlib.suppress(Exception):
                ray.shutdown()
            self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


def _init(**options: Any) -> None:
    """ray.init, whole whatever signals come, and without the handler that it puts in the place of ours."""
    import ray

    with shielded(), kept_handlers():
        try:
            ray.init(**options)
        except SystemExit:  # what its own handler makes of SIGTERM
            raise Interrupted(signal.SIGTERM) from None


def remove_left_scratch() -> None:
    """Remove the scratch directories of drivers that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        pid = path.name.removeprefix(SCRATCH).partition("-")[0]
        if not pid.isdigit() or not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def free_port() -> int:
    """A TCP port on the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]
