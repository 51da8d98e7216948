"""Starting and resuming runs: what lies between the command line and a driver."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vime.config.options import check_pass_through
from vime.config.resolve import Resolved, leaf_values, resolve
from vime.config.tree import Config
from vime.errors import Interrupted, RunError, UserError
from vime.loop.clock import Progress
from vime.loop.placement import check_devices
from vime.machine import packages
from vime.platforms import launch, registry
from vime.platforms.base import Platform
from vime.tracking.provenance import commit, environment, host, package_versions
from vime.tracking.run_dir import COMPLETED, RunDir

# How a run is spread over devices: none of it changes what is trained.
LAYOUT = ("parallel.", "placement.", "rollout.engines", "rollout.tensor_parallel", "train.max_tokens_per_microbatch", "train.recompute", "timeouts.")


def start_training(resolved: Resolved, out: Path | None) -> Path:
    """A new run. Returns its directory."""
    from vime.loop.sync import SyncRun, open_inputs

    platform = prepare(resolved.config)
    with open_inputs(resolved.config) as inputs:  # the model directory, tokenizer, prompts and reward are tried before anything is written or started
        run = RunDir.create(run_path(resolved.config, out), resolved, {**manifest(resolved, platform), "data": inputs.source.identity()})
        with attempt(run, "start"):
            SyncRun(resolved.config, platform, run, inputs).train(checkpoint=None)
    return run.path


def resume_training(path: Path, file: Path | None, overrides: list[str]) -> Path:
    """Go on with the run in `path` from its last complete checkpoint (from its start when there is none). A finished run is left as it is.

    Where it is written may differ from the run's configuration, and how it is spread over devices (`LAYOUT`): a checkpoint loads into any layout.
    """
    from vime.loop.sync import SyncRun, open_inputs
    from vime.training.checkpoint import latest

    with contextlib.closing(RunDir.open(path)) as run:
        resolved = resolve(file if file is not None else path / "config.yaml", overrides)
        changes = check_unchanged(run, resolved)
        if run.finished:
            Progress(resolved.config, 0).note(f"{path} is finished: all {resolved.config.train.steps} steps are done, there is nothing to resume")
            return run.path
        platform = prepare(resolved.config)
        checkpoint = latest(run.checkpoints)
        with open_inputs(resolved.config) as inputs:
            inputs.source.check(run.manifest().get("data", inputs.source.identity()))
            where = checkpoint.name if checkpoint else "the start: no complete checkpoint"
            with attempt(run, ", with ".join([f"resume from {where}", *([", ".join(changes)] if changes else [])])):
                SyncRun(resolved.config, platform, run, inputs).train(checkpoint)
    return run.path


def check_unchanged(run: RunDir, given: Resolved) -> list[str]:
    """The changes of layout by which a configuration differs from the run's. Raises UserError naming the keys when anything else differs."""
    recorded = run.manifest()["config_hash"]
    if given.hash == recorded:
        return []
    was = dict(leaf_values(resolve(run.path / "config.yaml").config))
    now = dict(leaf_values(given.config))
    changed = {
        key: f"{key} {was.get(key)!r} → {now.get(key)!r}" for key in [*was, *(now.keys() - was.keys())] if was.get(key) != now.get(key) and key != "run_dir"
    }
    others = [text for key, text in changed.items() if not key.startswith(LAYOUT)]
    if changed and not others:
        return list(changed.values())
    raise UserError(
        f"--resume {run.path}: this configuration (hash {given.hash[:12]}) is not the run's (hash {recorded[:12]}): "
        f"{', '.join(others[:5]) or 'its config.yaml was edited'}: resume without changes, or start a new run"
    )


def prepare(config: Config, *, serves: bool = True) -> Platform:
    """The platform, and the checks that need the installed packages but no device. `serves`: the run has engines."""
    platform = registry.get(config.platform)
    launch.check_outer(platform, config)
    problems = check_pass_through(config) + (platform.preflight(config, hf_config(config), packages()) if serves else [])
    if problems:
        raise UserError("\n".join(problems))
    if config.placement.ray_address is None:
        check_devices(config, config.placement.devices_per_node or platform.device_count(), platform.name)
    check_weights(config)
    return platform


def hf_config(config: Config) -> dict[str, Any]:
    """The model's config.json; empty where it is missing or unreadable (whoever loads the model says so)."""
    try:
        found = json.loads((Path(config.model.path) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def check_weights(config: Config) -> None:
    """Raises UserError when there are none to start from; whether they fit is for the trainers to see."""
    path = Path(config.model.path)
    if config.model.load == "hf" and config.model.random_init_seed is None and path.is_dir() and not any(path.glob("*.safetensors")):
        raise UserError(f"model.path: no *.safetensors in {path}: give a directory with weights, or set model.random_init_seed to start from random ones")


def run_path(config: Config, out: Path | None) -> Path:
    if out is not None:
        return out
    return Path(config.run_dir) if config.run_dir else Path("runs") / config.name / time.strftime("%Y%m%d-%H%M%S")


def manifest(resolved: Resolved, platform: Platform) -> dict[str, Any]:
    """Everything about a run that is known before it starts."""
    config = resolved.config
    return {
        "name": config.name,
        "labels": config.labels,
        **commit(),
        "versions": {**package_versions(), **platform.versions()},
        "host": host(),
        "platform": platform.name,
        "devices": {"count": platform.device_count(), "resource": platform.ray_resource, "missing_capabilities": dict(platform.missing)},
        "seed": config.seed,
        "environment": {"driver": environment(), **{role: launch.environment(platform, role, config) for role in ("trainer", "engine")}},
        "planned_steps": config.train.steps,
    }


@contextlib.contextmanager
def attempt(run: RunDir, reason: str) -> Iterator[None]:
    """Record how an attempt ended, whichever way it does. After a SIGKILL its end stays null, which says just that."""
    run.begin_attempt(reason)
    try:
        yield
    except Interrupted as stop:
        _record_end(run, str(stop))
        raise
    except (UserError, RunError) as error:
        _record_end(run, f"failed: {error}", stage=getattr(error, "stage", "configuration"), text=str(error))
        raise
    except BaseException as error:
        _record_end(run, f"failed: {type(error).__name__}: {error}", stage="driver", text=f"{type(error).__name__}: {error}")
        raise
    else:
        run.end_attempt(COMPLETED)
    finally:
        run.close()


def _record_end(run: RunDir, reason: str, **error: str) -> None:
    """Write down what can be written: on a full disk the failure itself must still be what the user is told."""
    with contextlib.suppress(RunError, UserError):
        if error:
            run.event("error", **error)
    with contextlib.suppress(RunError, UserError):
        run.end_attempt(reason)
