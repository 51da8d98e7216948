"""Going on after an engine died: a fresh one takes its place, every engine gets the weights anew, and the interrupted stage is done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vime.loop.cluster import Cluster
from vime.loop.workers import Worker, WorkerDied
from vime.tracking.run_dir import RunDir

T = TypeVar("T")


class EngineRecovery:
    """Counts the restarts of one run against `rollout.max_engine_restarts`."""

    def __init__(self, cluster: Cluster, engines: list[Worker], run: RunDir, limit: int):
        self.cluster, self.engines, self.run, self.left = cluster, engines, run, limit

    def guard(self, action: Callable[[], T], rejoin: Callable[[], object]) -> T:
        """Do `action`; when an engine dies in it and restarts are left, restart that engine, `rejoin` (a full weight sync), and do `action` again.

        Samples are seeded by step, group and index, so a repeated rollout draws the same answers. Without restarts left the WorkerDied goes on to the caller.
        """
        while True:
            try:
                return action()
            except WorkerDied as death:
                self._replace(death)
            self.guard(rejoin, lambda: None)

    def _replace(self, death: WorkerDied) -> None:
        index = next((i for i, engine in enumerate(self.engines) if engine.name == death.worker), None)
        if index is None or self.left == 0:
            raise death
        self.left -= 1
        self.run.event("retry", stage=death.stage, worker=death.worker, text=death.message, restarts_left=self.left)
        self.engines[index] = self.cluster.restart_engine(index)
