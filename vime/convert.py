"""`vime convert`: between Hugging Face directories and Megatron's torch_dist format, on the CPU of one process, without an optimizer.

The torch_dist side is a checkpoint of weights alone in vime's own form (vime.json last), which any layout loads. The Hugging Face side is read slice by slice
and written file by file, so the model is in memory once, in its own dtype.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from vime.config.tree import Config, DataConfig, Dtype, ModelConfig
from vime.errors import UserError

EVERY_S = 2.0  # between progress lines


def hf_to_torch_dist(model: Path, out: Path, dtype: Dtype | None = None) -> None:
    """Write the weights of a Hugging Face directory as a torch_dist checkpoint, in `dtype` (None: config.json's). MTP layers come along where the files hold
    them.

    Raises UserError when `model` is no model vime knows or `out` holds something else, RunError(stage "checkpoint") when the disk refuses.
    """
    from vime.models.hf_io import load_hf, read_config
    from vime.training import checkpoint

    _check_target(out, "vime.json", "a checkpoint")
    with _trained(model, dtype or _dtype_of(read_config(model)), mtp=_holds_draft(model)) as trained:
        load_hf(trained.model, model, trained.table, trained.layout, progress=Progress(f"reading {model}"))
        _say(f"writing {out}")
        checkpoint.save(trained, out.absolute(), {"source": str(model)})
    _say(f"wrote {out}")


def torch_dist_to_hf(path: Path, model: Path, out: Path) -> None:
    """Write the weights of a checkpoint (of training, or converted) as a Hugging Face directory, with config.json and tokenizer of `model`, in the dtype they
    were saved in.

    Raises UserError when `path` is no whole checkpoint of that model or `out` holds something else, RunError(stage "export") when the disk refuses.
    """
    from vime.models.hf_io import export_hf
    from vime.training import checkpoint
    from vime.weights.exporter import gather_plan, shards, whole_tensors

    meta = checkpoint.read_meta(path)
    _check_target(out, "config.json", "a model")
    with _trained(model, meta["dtype"], mtp=meta["mtp"] > 0) as trained:
        _say(f"reading {path}")
        checkpoint.load(trained, path, optimizer=False)
        local = list(shards([trained.model], trained.table, trained.layout))
        plan = gather_plan(local, list(trained.table.shapes))
        sizes = {name: _numel(infos) * infos[0].dtype.itemsize for name, infos in plan.items()}
        tensors = Progress(f"writing {out}").over(whole_tensors(local, plan), sizes)
        export_hf(tensors, sizes, out.absolute(), model, trained.family.exported_config(trained.hf_config, mtp=trained.mtp > 0), writes=True)
    _say(f"wrote {out}")


class Progress:
    """Lines on stderr: how far, how many bytes, how long; at most one every two seconds."""

    def __init__(self, what: str):
        self.what, self.bytes, self.begin = what, 0, time.monotonic()
        self.told = self.begin

    def __call__(self, done: int, total: int, nbytes: int) -> None:
        self.bytes += nbytes
        now = time.monotonic()
        if now - self.told > EVERY_S or done == total:
            self.told = now
            _say(f"{self.what}: {done}/{total} tensors, {self.bytes / 2**30:.2f} GiB, {now - self.begin:.0f} s")

    def over(self, items: Iterator[tuple[str, Any]], sizes: dict[str, int]) -> Iterator[tuple[str, Any]]:
        for done, (name, tensor) in enumerate(items, 1):
            yield name, tensor
            self(done, len(sizes), sizes[name])


@contextmanager
def _trained(model: Path, dtype: Dtype, *, mtp: bool) -> Iterator[Any]:
    """The model on one rank, unfilled, in a process group of its own."""
    from vime.platforms import registry
    from vime.training.distributed import initialise, shut_down
    from vime.training.model import unloaded

    config = Config(model=ModelConfig(path=str(model), dtype=dtype), data=DataConfig(task="none"), platform="cpu")
    platform = registry.get("cpu")
    os.environ.update(platform.environment("trainer", config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Megatron and torch say to programmers would stand between the lines of progress
        layout = initialise(config, platform, 0, 1, "127.0.0.1", port)
        try:
            yield unloaded(config, platform, layout, platform.device(0), mtp=mtp)
        finally:
            shut_down()


def _holds_draft(model: Path) -> bool:
    """Whether the files of a Hugging Face directory hold multi-token-prediction layers (config.json may name some that were left out)."""
    from vime.models.hf_io import Checkpoint, read_config
    from vime.models.registry import family_for

    hf_config = read_config(model)
    family = family_for(hf_config, str(model / "config.json"))
    return family.mtp_layers(hf_config) > 0 and any(name in Checkpoint(model).files for name in family.weight_table(hf_config, mtp=True).draft)


def _dtype_of(hf_config: dict[str, Any]) -> Dtype:
    """Of the weights: config.json's own; bfloat16 where it says nothing."""
    found = (hf_config.get("text_config") or {}).get("dtype") or hf_config.get("dtype") or hf_config.get("torch_dtype") or "bfloat16"
    if found not in ("float32", "bfloat16"):
        raise UserError(f"config.json: dtype {found!r} is none vime trains in: give --dtype float32 or bfloat16")
    return cast(Dtype, found)


def _check_target(out: Path, mark: str, what: str) -> None:
    """Raises UserError for a place that may not be replaced whole."""
    if out.exists() and not (out.is_dir() and ((out / mark).is_file() or not any(out.iterdir()))):
        raise UserError(f"{out}: holds something else than {what} and would be replaced: name a new directory, or empty this one")


def _numel(infos: list[Any]) -> int:
    out = 1
    for extent in infos[0].global_shape:
        out *= extent
    return out


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
