"""Checkpoints: Megatron's torch_dist format in a directory that appears whole or not at all.

A checkpoint is written to `.<name>.partial` beside its final place; `vime.json` is its last file, and then the directory is renamed. Whatever carries no
vime.json under its final name is not a checkpoint, so a run killed at any moment leaves the earlier ones as they were. What writes is `checkpoint_writer.py`.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from vime.errors import UserError
from vime.training.checkpoint_writer import META, Save, root_cause
from vime.training.model import Trained

FORMAT = 2
DENSE, EXPERTS = "dense", "experts"  # the optimizers of a rank
SHARDING = {"distrib_optim_sharding_type": "fully_reshardable", "chained_optim_avoid_prefix": True}


# ---- directories (no torch.distributed) ------------------------------------------------------------------------------------------------------------


def is_complete(path: str | Path) -> bool:
    """Whether a whole checkpoint stands at `path`."""
    return (Path(path) / META).is_file()


def latest(root: str | Path) -> Path | None:
    """The whole checkpoint with the highest number among `<root>/<name>-<number>`, None if there is none."""
    _put_back(Path(root))
    found = _numbered(Path(root))
    return found[-1] if found else None


def prune(root: str | Path, keep: int) -> list[Path]:
    """Remove all but the `keep` highest-numbered checkpoints, and leftovers of interrupted saves. Returns what was removed."""
    root = Path(root)
    _put_back(root)
    doomed = [*_numbered(root)[:-keep], *root.glob(".*.partial"), *root.glob("*.old")]
    for path in doomed:
        shutil.rmtree(path, ignore_errors=True)
    return doomed


def _put_back(root: Path) -> None:
    """A save of a step that was saved before puts the earlier one aside for the moment between two renames: killed there, the earlier one is still the last
    good one."""
    for aside in root.glob("*.old"):
        place = aside.with_suffix("")
        if is_complete(aside) and not place.exists():
            aside.rename(place)


def _numbered(root: Path) -> list[Path]:
    numbered = [(int(path.name.rsplit("-", 1)[-1]), path) for path in root.glob("*-*") if path.name.rsplit("-", 1)[-1].isdigit() and is_complete(path)]
    return [path for _, path in sorted(numbered)]


def read_meta(path: str | Path) -> dict[str, Any]:
    """vime.json of a checkpoint. Raises UserError when it is missing, unreadable, or of another format."""
    file = Path(path) / META
    if not file.is_file():
        raise UserError(f"{path}: no complete checkpoint there ({META} is missing)")
    try:
        meta = dict(json.loads(file.read_text()))
    except json.JSONDecodeError as error:
        raise UserError(f"{file}: not JSON: {error}") from None
    if meta.get("format") != FORMAT:
        raise UserError(f"{file}: checkpoint format {meta.get('format')}, this vime reads {FORMAT}")
    return meta


# ---- saving ----------------------------------------------------------------------------------------------------------------------------------------


def save(trained: Trained, path: str | Path, extra: dict[str, Any], keep: int | None = None) -> None:
    """Write model, optimizer and random states of all ranks, and `extra` (JSON). A collective. With `keep`, older checkpoints beside it are pruned afterwards.

    Raises RunError(stage "checkpoint") on every rank when any could not write; what stood there before is left alone.
    """
    begin(trained, path, extra, keep).finish()


def begin(trained: Trained, path: str | Path, extra: dict[str, Any], keep: int | None = None, *, background: bool = False) -> Save:
    """Start a save; it is a checkpoint once every rank has called `finish` on what this returns. With `background` the state is copied and its files are
    written by a thread, while training may go on."""
    path = Path(path)
    whole = trained.optimizer is not None
    meta = {
        "format": FORMAT,
        "model": fingerprint(trained),
        "dtype": str(trained.config.params_dtype).removeprefix("torch."),
        "mtp": trained.mtp,
        "world_size": dist.get_world_size(),
        "weights_only": not whole,
        "extra": extra,
    }
    publish = (lambda: prune(path.parent, keep)) if keep is not None else None
    return Save(_state(trained, loading=False, optimizer=whole, random_states=whole), path, meta, publish, background=background)


# ---- loading ---------------------------------------------------------------------------------------------------------------------------------------


def load(trained: Trained, path: str | Path, *, optimizer: bool = True) -> dict[str, Any]:
    """Restore model, optimizer and random states, bit for bit on the same layout (another layout may differ in its random states). Returns `extra`. A
    collective.

    Raises UserError when there is no whole checkpoint, or it is of another model. `optimizer=False` reads the weights alone.
    """
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.core import CheckpointingException

    meta = read_meta(path)
    if meta["model"] != fingerprint(trained):
        raise UserError(f"{path}: holds another model: {meta['model']}, model.path describes {fingerprint(trained)}")
    if trained.mtp > meta.get("mtp", 0):
        raise UserError(
            f"{path}: was saved without the multi-token-prediction layers that train.mtp or rollout.speculative ask for: convert or train with them"
        )
    state = _state(trained, loading=True, optimizer=optimizer, random_states=optimizer and meta["world_size"] == dist.get_world_size())
    if optimizer and meta.get("weights_only"):
        raise UserError(f"{path}: holds weights alone, no optimizer to go on with: start from it with model.load: torch-dist")
    try:
        loaded = dist_checkpointing.load(state, str(path))
    except (CheckpointingException, OSError, EOFError, RuntimeError) as error:
        raise UserError(f"{path}: the checkpoint cannot be read ({root_cause(error)}); resume from an earlier one") from error
    trained.model.load_state_dict(loaded["model"])
    if optimizer:
        for kind, part in optimizers(trained).items():
            part.load_state_dict(loaded["optimizer"][kind])
        own_step_counters(trained.optimizer)
    elif trained.optimizer is not None:
        trained.optimizer.reload_model_params()
    if "random" in loaded:
        _set_random_states(loaded["random"], _device(trained))
    return dict(meta["extra"])


def own_step_counters(optimizer: Any) -> None:
    """Give each parameter its own Adam step count. Megatron restores one tensor shared by all, which torch's Adam would then advance once for every parameter
    of a step."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        for state in part.optimizer.state.values() if part.optimizer is not None else ():
            if torch.is_tensor(state.get("step")):
                state["step"] = state["step"].clone()


def prepare_optimizer_state(optimizer: Any) -> None:
    """Create torch Adam's state before its first step, as that step would: Megatron can neither save nor load an optimizer that has none."""
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        inner = part.optimizer
        if not isinstance(inner, torch.optim.Adam | torch.optim.AdamW):
            continue
        for group in inner.param_groups:
            for parameter in group["params"]:
                if not inner.state[parameter]:
                    zeros = [torch.zeros_like(parameter, memory_format=torch.preserve_format) for _ in range(2)]
                    inner.state[parameter].update(step=torch.zeros((), dtype=torch.float32), exp_avg=zeros[0], exp_avg_sq=zeros[1])


def fingerprint(trained: Trained) -> str:
    """Of the architecture: family and every tensor's name and shape, the draft model's (MTP layers) apart."""
    table = trained.table
    names = json.dumps({name: list(shape) for name, shape in table.shapes.items() if name not in table.draft and name not in table.aliases})
    return f"{trained.family.name} {hashlib.sha256(names.encode()).hexdigest()[:16]}"


def _state(trained: Trained, *, loading: bool, optimizer: bool = True, random_states: bool = True) -> dict[str, Any]:
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    model = trained.model.sharded_state_dict(metadata=dict(SHARDING))  # type: ignore[operator]
    state: dict[str, Any] = {"model": model}
    if optimizer:
        state["optimizer"] = _optimizer_state(trained, model, loading)
    if random_states:
        world, rank = dist.get_world_size(), dist.get_rank()
        state["random"] = ShardedObject("random", _random_states(_device(trained)), (world,), (rank,))
    return state


def optimizers(trained: Trained) -> dict[str, Any]:
    """Megatron's optimizers by kind. A pipeline stage without routed experts has an empty one for them, which can neither be saved nor loaded."""
    parts = getattr(trained.optimizer, "chained_optimizers", [trained.optimizer])
    filled = [part for part in parts if any(group["params"] for group in part.param_groups)]
    return {EXPERTS if any(group.get("is_expert_parallel") for group in part.param_groups) else DENSE: part for part in filled}


def _optimizer_state(trained: Trained, model: Any, loading: bool) -> dict[str, Any]:
    """By kind, whatever the number of optimizers on this rank. What all parameters share (rates, step counts) is written by rank 0 alone, so it writes that of
    experts too where others hold them."""
    state = {kind: part.sharded_state_dict(model, is_loading=loading, metadata=dict(SHARDING)) for kind, part in optimizers(trained).items()}
    if not loading and trained.family.has_experts and EXPERTS not in state:
        state[EXPERTS] = _shared(state[DENSE])
        for group in state[EXPERTS].get("param_groups", []) + state[EXPERTS].get("optimizer", {}).get("param_groups", []):
            group["is_expert_parallel"] = True
    return state


def _shared(value: Any) -> Any:
    """A copy without what is sharded or belongs to a rank."""
    from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedBase

    if isinstance(value, dict):
        kept = {key: _shared(part) for key, part in value.items() if not isinstance(part, ShardedBase | LocalNonpersistentObject)}
        return {key: part for key, part in kept.items() if not isinstance(part, dict | list) or part}
    if isinstance(value, list):
        return [_shared(part) for part in value if not isinstance(part, ShardedBase | LocalNonpersistentObject)]
    return value


def _device(trained: Trained) -> torch.device:
    return next(trained.model.parameters()).device


def _random_states(device: torch.device) -> dict[str, Any]:
    from megatron.core import tensor_parallel

    out = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002  (user rewards and plug-ins may draw from the global generator)
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }
    if device.type != "cpu":
        out["device"] = torch.get_device_module(device).get_rng_state()
    return out


def _set_random_states(states: dict[str, Any], device: torch.device) -> None:
    from megatron.core import tensor_parallel

    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    tensor_parallel.get_cuda_rng_tracker().set_states(states["tracker"])
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"])
