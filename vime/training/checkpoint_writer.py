"""Writing one checkpoint: Megatron's torch_dist writer inside this process, at once or by a thread while training goes on."""

from __future__ import annotations

import json
import os
import queue
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from vime.errors import RunError
from vime.models.hf_io import replace_directory

META = "vime.json"
STAGE = "checkpoint"
PROBE_BYTES = 2**18


class Save:
    """One save under way. Making it and `finish` are collectives; between them the files may still be being written.

    Nothing stands at `path` before `finish` has returned on every rank. A failure of any rank raises RunError(stage "checkpoint") on all of them.
    """

    def __init__(self, state: dict[str, Any], path: Path, meta: dict[str, Any], publish: Callable[[], object] | None, *, background: bool):
        """`state` is Megatron's sharded state; `meta` becomes vime.json; `publish` is called on rank 0 when the checkpoint stands."""
        from megatron.core import dist_checkpointing
        from torch.distributed.checkpoint import CheckpointException

        self.path, self.meta, self.publish = path, meta, publish
        self.temporary = path.with_name(f".{path.name}.partial")
        self.failure: BaseException | None = None
        self._together(lambda: _fresh(self.temporary))
        try:
            self.request = dist_checkpointing.save(state, str(self.temporary), sharded_strategy=_strategy(), async_sharded_save=True)
            buckets = self.request.preload_fn()
            self.request.async_fn_args[1] = snapshot(self.request.async_fn_args[1], buckets) if background else buckets
        except (Exception, CheckpointException) as error:  # torch's CheckpointException is no Exception
            raise self._failed(error) from error
        self.thread = threading.Thread(target=self._write, name=f"checkpoint {path.name}")  # not a daemon: files under way are ended before the process
        self.thread.start()
        if not background:
            self.thread.join()

    def _write(self) -> None:
        try:
            self.request.async_fn(*self.request.async_fn_args)
        except BaseException as error:  # noqa: BLE001  (told by `finish`, on every rank)
            self.failure = error

    @property
    def written(self) -> bool:
        """Whether this rank's files are written, or have failed."""
        return not self.thread.is_alive()

    def finish(self) -> None:
        """Wait for all ranks' files and publish the checkpoint. A collective."""
        from torch.distributed.checkpoint import CheckpointException

        self.thread.join()
        self._together(lambda: None, self.failure)
        try:
            for finalize in self.request.finalize_fns:
                finalize()
        except (Exception, CheckpointException) as error:
            raise self._failed(error) from error
        self._together(self._publish)

    def _publish(self) -> None:
        with (self.temporary / META).open("w") as file:
            json.dump(self.meta, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        replace_directory(self.temporary, self.path)
        parent = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)
        if self.publish is not None:
            self.publish()

    def _together(self, work: Callable[[], object], failure: BaseException | None = None) -> None:
        """Do `work` on rank 0 and learn how all ranks fared: an OSError in it, or any rank's `failure`, is raised everywhere, so that no rank waits for one
        that gave up."""
        try:
            if dist.get_rank() == 0 and failure is None:
                work()
        except OSError as error:
            failure = error
        told: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(told, root_cause(failure) if failure else None)
        reason = next((text for text in told if text), None)
        if reason:
            raise self._failed(OSError(reason)) from failure

    def _failed(self, error: BaseException) -> RunError:
        if dist.get_rank() == 0:
            shutil.rmtree(self.temporary, ignore_errors=True)
        cause = root_cause(error)
        return RunError(STAGE, f"{self.path} could not be written ({cause}); earlier checkpoints are untouched. Free space there or point run_dir elsewhere")


def snapshot(buckets: list[Any], on_host: list[Any]) -> list[Any]:
    """Megatron's write buckets with their tensors as they are now. `on_host`: the same, brought to the host; a tensor that was there already may be the
    parameter itself, which the next step would change."""
    out = []
    for (file, key, (objects, sources)), (_, _, (_, tensors)) in zip(buckets, on_host, strict=True):
        kept = [(item, tensor.clone() if tensor is source else tensor) for (item, tensor), (_, source) in zip(tensors, sources, strict=True)]
        out.append((file, key, (objects, kept)))
    return out


def _fresh(directory: Path) -> None:
    """An empty directory on a disk with room for the small files that rank 0 alone writes inside Megatron, where the others would wait for it in vain."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    probe = directory / "probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    probe.unlink()


def root_cause(error: BaseException) -> str:
    """One line: the operating system's complaint where there is one in the chain of causes, else the innermost message. (torch.save hides a full disk behind
    one of its own.)"""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)
    chosen = next((link for link in chain if isinstance(link, OSError)), chain[-1])
    return next(iter(str(chosen).strip().splitlines()), "") or type(chosen).__name__


def _strategy() -> Any:
    """Megatron's torch_dist writer, writing from this process. Its own forks writers (unsafe beside Ray's threads) and starts a manager process for their
    results."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
    from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_finalize
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    filesystem_async._results_queue = queue.Queue()

    def write(transforms: Any, rank: int, buckets: list[Any], results: Any) -> None:
        outcomes = [_write_bucket(filesystem_async.FileSystemWriterAsync, transforms, index, bucket) for index, bucket in enumerate(buckets)]
        failure = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
        if failure is not None:
            raise failure
        if results is not None:  # None: this rank has nothing to write
            results.put(dict(enumerate(outcomes)))

    class InProcess(TorchDistSaveShardedStrategy):
        def _get_save_and_finalize_callbacks(self, writer: Any, planned: Any) -> Any:
            arguments = [dist.get_rank(), writer.write_buckets or [], writer.results_queue]
            preload = partial(writer.preload_tensors, arguments[1], True)
            return AsyncRequest(partial(write, [writer.transforms]), arguments, [lambda: save_state_dict_async_finalize(*planned)], preload_fn=preload)

    return InProcess("torch_dist", 1, thread_count=1)


def _write_bucket(writer: Any, transforms: list[Any], index: int, bucket: Any) -> Any:
    """The write results of one file, or the exception that stopped it."""
    told: queue.Queue[tuple[int, Any]] = queue.Queue()
    counted: queue.Queue[int] = queue.Queue()
    counted.put(index)
    writer.write_preloaded_data(transforms, index, bucket, told, counted, True)
    return told.get()[1]
