"""What has to be made once before a run can begin: the converted checkpoint of cells that load `torch-dist`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

from e2e.code_version import CHECKOUT
from e2e.leases import LeaseError
from e2e.process import GuardedProcess
from e2e.run_plan import RunPlan
from matrix.launch import conversion

CONVERT = (sys.executable, "-m", "vime.cli", "convert", "hf-to-torch-dist")  # `WEIGHTS TARGET` follows
COMPLETE = "vime.json"  # the last file that a checkpoint gets
POLL_S = 0.5


def prepare(plan: RunPlan, say: Callable[[str], None], command: Sequence[str] = CONVERT) -> None:
    """Convert the weights that `plan` loads where that has not been done: once, whoever else wants it meanwhile waits. Output goes to <target>.log.

    Raises LeaseError, with the last line it printed, where the conversion fails: the run cannot be made here. Ctrl-C ends it and passes through.
    """
    wanted = None if plan.framework else conversion(plan.config)
    if wanted is None or (Path(wanted[1]) / COMPLETE).is_file():
        return
    weights, target = wanted[0], Path(wanted[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    log = target.with_name(f"{target.name}.log")
    with FileLock(target.with_name(f".{target.name}.lock")):
        if (target / COMPLETE).is_file():
            return
        say(f"converting {weights} to torch-dist")
        log.unlink(missing_ok=True)
        with GuardedProcess([*command, weights, str(target)], log, CHECKOUT, plan.environment(), plan.lease.descriptors) as process:
            while (exit_ := process.wait(POLL_S)) is None:
                continue
        if exit_.code != 0 or not (target / COMPLETE).is_file():
            last = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()][-1:]
            raise LeaseError(f"{weights} could not be converted to torch-dist ({exit_}): {''.join(last) or 'it printed nothing'} ({log})")
