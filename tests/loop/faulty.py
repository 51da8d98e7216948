"""`vime` with one planted accident: `python -m tests.loop.faulty FAULT train …`, FAULT a JSON object of `Fault`'s fields.

The accident is a real one (a signal, a hang, the kernel's file size limit) at a chosen point of a chosen process; nothing of vime is replaced but the door
through which it is reached. Ray's workers inherit it through the environment.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

VARIABLE = "VIME_TEST_FAULT"
HANG_S = 120.0


@dataclass(frozen=True)
class Fault:
    """`at`: "engine.receive", "trainer.train", "checkpoint._publish" (in a trainer, files written), "driver._rollout" (SyncRun's methods), …; `call`: at
    which call of it in that process, from 0; `do`: what happens then, once over all processes, just before the call is made.

    `flag` is created at that moment. kill: this process, by SIGKILL; kill-driver: the driver, while this process hangs; hang: this process does not come
    back; limit: files of this process cannot grow beyond `limit` bytes from now on. do: take-port (at "cluster.free_port") listens on the port that the
    trainers are told to meet at.
    """

    at: str
    do: str
    flag: str
    call: int = 0
    limit: int = 0
    rank: int = 0  # of the trainer, or the engine's index
    driver: int = 0


def planted() -> Fault:
    return Fault(**json.loads(os.environ[VARIABLE]))


class Trap:
    """Counts the calls of one point in this process and springs at the chosen one."""

    def __init__(self, fault: Fault):
        self.fault, self.calls = fault, 0

    def __call__(self) -> None:
        if self.calls == self.fault.call and self._first():
            self._spring()
        self.calls += 1

    def _first(self) -> bool:
        try:
            Path(self.fault.flag).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _spring(self) -> None:
        do = self.fault.do
        if do == "limit":
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault.limit, self.fault.limit))
            return
        if do in ("kill", "kill-driver"):
            os.kill(os.getpid() if do == "kill" else self.fault.driver, signal.SIGKILL)
        time.sleep(HANG_S)


def mine(base: type, name: str) -> Any:
    """A worker of class `base`, with the trap set where it is this worker's."""
    fault = planted()
    worker, trap = base(), Trap(fault)
    owner, _, method = fault.at.partition(".")
    if owner == "checkpoint" and name == "trainer":
        from vime.training import checkpoint, checkpoint_writer

        place = checkpoint if hasattr(checkpoint, method) else checkpoint_writer.Save
        setattr(place, method, trapped(getattr(place, method), trap))
    elif owner == name:
        original = getattr(worker, method)
        setattr(worker, method, trapped(original, trap, lambda: rank_of(worker, fault) == fault.rank))
    return worker


def rank_of(worker: Any, fault: Fault) -> int:
    """Its number; a worker that has not started is taken for the chosen one."""
    if hasattr(worker, "index"):
        return worker.index
    return worker.weight_sender.rank if hasattr(worker, "weight_sender") else fault.rank


def trapped(function: Callable[..., Any], trap: Trap, here: Callable[[], bool] = lambda: True) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if here():
            trap()
        return function(*args, **kwargs)

    return call


def trainer() -> Any:
    from vime.loop.trainer_actor import Trainer

    return mine(Trainer, "trainer")


def engine() -> Any:
    from vime.rollout.engine import EngineActor

    return mine(EngineActor, "engine")


def main() -> None:
    fault = replace(Fault(**json.loads(sys.argv[1])), driver=os.getpid())
    os.environ[VARIABLE] = json.dumps(asdict(fault))
    from vime import cli
    from vime.loop import cluster, sync

    cluster.TRAINER, cluster.ENGINE = f"{__spec__.name}:trainer", f"{__spec__.name}:engine"
    owner, _, method = fault.at.partition(".")
    if fault.do == "take-port":
        taken = socket.create_server(("127.0.0.1", 0))
        cluster.free_port = lambda: taken.getsockname()[1]
    if owner == "driver":
        setattr(sync.SyncRun, method, trapped(getattr(sync.SyncRun, method), Trap(fault)))
    sys.argv = ["vime", *sys.argv[2:]]
    cli.main()


if __name__ == "__main__":
    main()
