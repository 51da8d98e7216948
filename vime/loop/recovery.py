"""Going on after an engine died: a fresh one takes its place, every engine gets the weights anew, and the interrupted stage is done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from vime.loop.cluster import Cluster
from vime.loop.workers import Worker, WorkerDied
from vime.tracking.run_dir import RunDir

T = TypeVar("T")


class EngineRecovery:
    """Restarts engines, at most `limit` times in one attempt, and tells everybody who holds a handle of the old one (`replaced(index, worker)`)."""

    def __init__(self, cluster: Cluster, engines: Sequence[Worker], replaced: Sequence[Callable[[int, Worker], None]], run: RunDir, limit: int):
        self.cluster, self.names, self.replaced, self.run, self.left = cluster, [engine.name for engine in engines], replaced, run, limit

    def guard(self, action: Callable[[], T], rejoin: Callable[[], object] = lambda: None) -> T:
        """Do `action`; when an engine dies in it and a restart is left, restart that engine, `rejoin` (a full weight sync), and do `action` again.

        Samples are seeded by step, group and index, so a repeated rollout draws the same answers. Without a restart left the WorkerDied goes on to the caller.
        """
        while True:
            try:
                return action()
            except WorkerDied as death:
                self._replace(death)
            rejoin()

    def _replace(self, death: WorkerDied) -> None:
        if death.worker not in self.names or self.left == 0:
            raise death
        self.left -= 1
        self.run.event("retry", stage=death.stage, worker=death.worker, text=death.message, restarts_left=self.left)
        index = self.names.index(death.worker)
        worker = self.cluster.restart_engine(index)
        for tell in self.replaced:
            tell(index, worker)
