"""Starting and resuming runs: what lies between the command line and a driver."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vime.config.options import check_pass_through
from vime.config.resolve import Resolved, resolve
from vime.config.tree import Config
from vime.errors import Interrupted, RunError, UserError
from vime.platforms import registry
from vime.platforms.base import Platform
from vime.tracking.provenance import commit, environment, host, package_versions
from vime.tracking.run_dir import RunDir


def start_training(resolved: Resolved, out: Path | None) -> Path:
    """A new run. Returns its directory."""
    from vime.loop.sync import SyncRun, open_inputs

    platform = prepare(resolved.config)
    with open_inputs(resolved.config) as inputs:  # the model directory, tokenizer, prompts and reward are tried before anything is written or started
        run = RunDir.create(run_path(resolved.config, out), resolved, manifest(resolved, platform))
        with attempt(run, "start"):
            SyncRun(resolved.config, platform, run, inputs).train(checkpoint=None)
    return run.path


def resume_training(path: Path, file: Path | None, overrides: list[str]) -> Path:
    """Go on with the run in `path` from its last complete checkpoint (from its start when there is none).

    Only where it is written may differ from the run's configuration.
    """
    from vime.loop.sync import SyncRun, open_inputs
    from vime.training.checkpoint import latest

    run = RunDir.open(path)
    resolved = resolve(path / "config.yaml", overrides)
    recorded = run.manifest()["config_hash"]
    given = resolve(file, overrides) if file is not None else resolved
    if given.hash != recorded:
        raise UserError(
            f"--resume {path}: this configuration (hash {given.hash[:12]}) is not the run's (hash {recorded[:12]}): resume without changes, or start a new run"
        )
    platform = prepare(resolved.config)
    checkpoint = latest(run.checkpoints)
    with open_inputs(resolved.config) as inputs, attempt(run, f"resume from {checkpoint.name if checkpoint else 'the start: no complete checkpoint'}"):
        SyncRun(resolved.config, platform, run, inputs).train(checkpoint)
    return run.path


def prepare(config: Config) -> Platform:
    """The platform, and the checks that need the installed packages but no device."""
    platform = registry.get(config.platform)
    problems = check_pass_through(config)
    if problems:
        raise UserError("\n".join(problems))
    return platform


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
        "environment": {"driver": environment(), **{role: platform.environment(role, config) for role in ("trainer", "engine")}},
        "planned_steps": config.train.steps,
    }


@contextlib.contextmanager
def attempt(run: RunDir, reason: str) -> Iterator[None]:
    """Record how an attempt ended, whichever way it does. After a SIGKILL its end stays null, which says just that."""
    run.begin_attempt(reason)
    try:
        yield
    except (UserError, RunError) as error:
        run.event("error", stage=getattr(error, "stage", "configuration"), text=str(error))
        run.end_attempt(f"failed: {error}")
        raise
    except Interrupted as stop:
        run.end_attempt(str(stop))
        raise
    except BaseException as error:
        run.event("error", stage="driver", text=f"{type(error).__name__}: {error}")
        run.end_attempt(f"failed: {type(error).__name__}: {error}")
        raise
    else:
        run.end_attempt("completed")
    finally:
        run.close()
