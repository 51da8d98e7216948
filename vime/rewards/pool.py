"""Rewards in worker processes: a grader that hangs, crashes or exits costs its own sample and nothing else.

Samples go out in chunks. A worker returns a chunk when it is done or after `CHUNK_BUDGET_S`, whichever is first, so cheap samples share a round trip and
slow ones do not queue behind each other. A chunk whose worker had to be killed is split at the sample it was on: that one is marked, the others are
scored again (at most `CHUNK_BUDGET_S` of work is repeated; a reward must not mind being called twice).
"""

from __future__ import annotations

import concurrent.futures as cf
import math
import multiprocessing
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType

from pebble import ProcessExpired, ProcessPool

from vime.config.tree import RewardConfig
from vime.data.sample import Sample
from vime.errors import RunError, UserError
from vime.rewards import worker
from vime.rewards.worker import Item, Loaded, Outcome, WorkerSpec

CHUNK_BUDGET_S = 0.05
KILL_GRACE_S = 1.0  # past the soft limit before a worker is killed
START_TIMEOUT_S = 120.0  # for the workers to import the reward
SLOTS_PER_WORKER = 2  # chunks under way: one in work, one waiting in the pipe
MAX_RESTARTS = 3  # of the whole pool within one call


@dataclass
class _Batch:
    """The state of one `score` call."""

    waiting: deque[Item]
    running: dict[cf.Future[list[Outcome]], tuple[int, list[Item]]]
    done: dict[str, Outcome]
    restarts: int = 0


class RewardPool:
    """Worker processes that score answers; a context manager.

    Construction starts the workers, imports the reward in them and waits for that; make it in a thread that lasts, because the kernel ends the workers
    with the thread they were made in (that is how a killed run leaves none behind). Raises `UserError` when the reward does not exist, cannot be
    imported or cannot be called with `reward.args`.
    """

    def __init__(self, config: RewardConfig):
        self.config = config
        self._spec = WorkerSpec(config.name, dict(config.args), config.timeout_s)
        # Not fork: the driver has threads. Not forkserver: its workers keep it alive and it them when the driver is killed.
        self._context = multiprocessing.get_context("spawn")
        self._slots = SLOTS_PER_WORKER * config.workers
        self._chunk = 0  # samples a chunk by the speed seen so far; 0: not known
        self._wants = self._start()

    def score(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Set `reward`, or `reward_error` and reward None, on each sample, joined by sample id. Returns `rollout/reward_error_count` and `perf/reward_s`.

        Raises `RunError` (stage reward) for a reward that is infinite or outside `reward.range`, and when no sample at all could be scored.
        """
        started = time.monotonic()
        by_id = {s.sample_id: s for s in samples}
        if len(by_id) < len(samples):
            raise RunError("reward", f"{len(samples) - len(by_id)} of {len(samples)} samples share a sample id with another")
        outcomes = self._run([self._item(s) for s in samples])
        for sample_id, outcome in outcomes.items():
            sample = by_id[sample_id]
            sample.reward, sample.reward_error = self._accepted(outcome), outcome.error
        errors = [s.reward_error for s in samples if s.reward_error is not None]
        if samples and len(errors) == len(samples):
            raise RunError("reward", f"reward {self.config.name!r} could not score any of {len(samples)} answers; the first error: {errors[0]}")
        return {"rollout/reward_error_count": float(len(errors)), "perf/reward_s": time.monotonic() - started}

    def close(self) -> None:
        """End the workers. May be called twice."""
        self._pool.stop()
        self._pool.join()

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> tuple[str, ...]:
        progress = self._context.RawArray("q", self._slots)
        ready = self._context.Value("i", 0)
        initargs = (self._spec, progress, ready)
        self._progress = progress
        self._free = list(range(self._slots))
        self._pool = ProcessPool(self.config.workers, initializer=worker.start, initargs=initargs, context=self._context)
        report = self._pool.schedule(worker.loaded)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (report.done() and (ready.value >= self.config.workers or report.exception())):
            if time.monotonic() > deadline:
                self.close()
                raise RunError("reward", f"the worker processes of reward {self.config.name!r} were not ready within {START_TIMEOUT_S:g} s")
            time.sleep(0.005)
        return self._load_result(report)

    def _load_result(self, report: cf.Future[Loaded]) -> tuple[str, ...]:
        error = report.exception()
        if error is not None:
            self.close()
            raise UserError(f"reward.name {self.config.name!r}: a worker process died while it imported the reward ({error})")
        loaded = report.result()
        if loaded.error is not None:
            self.close()
            raise UserError(loaded.error)
        return loaded.wants

    def _item(self, sample: Sample) -> Item:
        context = {"finish_reason": sample.finish_reason, "prompt": sample.prompt.text, "response_ids": sample.response_ids}
        return Item(sample.sample_id, sample.text, sample.prompt.label, sample.prompt.metadata, {k: context[k] for k in self._wants})

    def _accepted(self, outcome: Outcome) -> float | None:
        low, high = self.config.range
        if outcome.value is None or low <= outcome.value <= high:
            return outcome.value
        if math.isinf(outcome.value):
            raise RunError("reward", f"reward {self.config.name!r} returned {outcome.value} for sample {outcome.sample_id}; a reward must be finite")
        raise RunError(
            "reward",
            f"reward {self.config.name!r} returned {outcome.value:g} for sample {outcome.sample_id}, outside reward.range [{low:g}, {high:g}]; "
            "mend the function, or declare the range it really has",
        )

    def _run(self, items: list[Item]) -> dict[str, Outcome]:
        batch = _Batch(deque(items), {}, {})
        while batch.waiting or batch.running:
            self._schedule(batch)
            ended = cf.wait(batch.running, timeout=self._patience_s(), return_when=cf.FIRST_COMPLETED).done
            if not ended:
                raise RunError("reward", f"no worker of reward {self.config.name!r} answered within {self._patience_s():g} s")
            for future in ended:
                if future in batch.running:  # a restart forgets those under way
                    self._collect(batch, future)
        return batch.done

    def _schedule(self, batch: _Batch) -> None:
        while batch.waiting and self._free:
            share = math.ceil(len(batch.waiting) / len(self._free))
            chunk = [batch.waiting.popleft() for _ in range(min(self._chunk or share, share))]
            slot = self._free.pop()
            self._progress[slot] = -1
            batch.running[self._submit(slot, chunk)] = (slot, chunk)

    def _submit(self, slot: int, chunk: list[Item]) -> cf.Future[list[Outcome]]:
        try:
            return self._pool.schedule(worker.score_chunk, args=(slot, chunk, CHUNK_BUDGET_S), timeout=self._kill_after_s())
        except RuntimeError as error:  # a worker died while idle, which breaks the pool whole
            broken: cf.Future[list[Outcome]] = cf.Future()
            broken.set_exception(BrokenProcessPool(str(error)))
            return broken

    def _collect(self, batch: _Batch, future: cf.Future[list[Outcome]]) -> None:
        slot, chunk = batch.running.pop(future)
        self._free.append(slot)
        error = future.exception()
        if error is None:
            outcomes = future.result()
            batch.done.update((o.sample_id, o) for o in outcomes)
            batch.waiting.extend(chunk[len(outcomes) :])
            self._chunk = len(outcomes) if len(outcomes) < len(chunk) else max(self._chunk, 2 * len(chunk))
        elif isinstance(error, (TimeoutError, ProcessExpired)):
            self._blame(batch, chunk, self._progress[slot], error)
        elif isinstance(error, BrokenProcessPool):
            self._restart(batch, chunk)
        else:  # the chunk could not be pickled, or the worker's own code is broken
            raise RunError("reward", f"reward {self.config.name!r}: a chunk could not be handed to a worker: {type(error).__name__}: {error}")

    def _blame(self, batch: _Batch, chunk: list[Item], position: int, error: BaseException) -> None:
        if not 0 <= position < len(chunk):  # the worker died between two samples
            batch.waiting.extend(chunk)
            return
        guilty = chunk[position]
        exit_code = getattr(error, "exitcode", None)
        killed = worker.timeout_text(self.config.timeout_s) + "; its worker was killed"
        text = killed if isinstance(error, TimeoutError) else f"the worker process died on this sample (exit code {exit_code})"
        batch.done[guilty.sample_id] = Outcome(guilty.sample_id, None, text)
        batch.waiting.extend(chunk[:position] + chunk[position + 1 :])

    def _restart(self, batch: _Batch, chunk: list[Item]) -> None:
        """Make the pool anew after an idle worker died, which breaks it whole, and send again what was under way."""
        batch.restarts += 1
        if batch.restarts > MAX_RESTARTS:
            raise RunError("reward", f"the worker processes of reward {self.config.name!r} keep dying while idle ({MAX_RESTARTS} restarts); is memory short?")
        batch.waiting.extend(chunk)
        for _, other in batch.running.values():
            batch.waiting.extend(other)
        batch.running.clear()
        self.close()
        self._wants = self._start()

    def _kill_after_s(self) -> float:
        return CHUNK_BUDGET_S + self.config.timeout_s + KILL_GRACE_S

    def _patience_s(self) -> float:
        """Longer than any healthy silence: a kill, a new worker's imports, and a second kill."""
        return 2 * self._kill_after_s() + START_TIMEOUT_S
