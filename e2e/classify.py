"""How a run ended, in the words of the outcomes. Pure; knows nothing of rewards, and its INFRA signatures contain no numerics."""

from __future__ import annotations

import re
from dataclasses import dataclass

from e2e.process import Exit
from matrix.outcome import Outcome


@dataclass(frozen=True)
class Signature:
    """A text that shows a run was lost to the machine and not to what it computed."""

    name: str
    pattern: re.Pattern[str]
    meaning: str


# The closed list. A signature may name a resource of the machine; never a value, a loss, a mismatch or a comparison: those are verdicts and are not retried.
INFRA_SIGNATURES = (
    Signature("port-in-use", re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE), "another process holds the port"),
    Signature("disk-full", re.compile(r"no space left on device|ENOSPC|disk quota exceeded", re.IGNORECASE), "the disk is full"),
    Signature(
        "ray-lost", re.compile(r"RaySystemError|failed to connect to GCS|raylet .{0,40}(died|exited|not alive)", re.IGNORECASE), "Ray's own processes were lost"
    ),
    Signature(
        "device-lost",
        re.compile(
            r"no CUDA-capable device|CUDA driver version is insufficient|device is lost|fallen off the bus|dcmi .{0,40}fail|drvErr|ERR\d{5} .{0,20}driver",
            re.IGNORECASE,
        ),
        "the accelerator or its driver is gone",
    ),
    Signature("network", re.compile(r"no route to host|network is unreachable|EI0006", re.IGNORECASE), "another node could not be reached"),
)

# Words of what was computed. Text that holds one is never INFRA, whatever else it holds.
NUMERICS = re.compile(r"\b(nan|inf|infinity|overflow|underflow|diverged?|mismatch|digests?|grad(ient)?[ _-]norm)\b|\b(not|non)[ -]finite\b", re.IGNORECASE)
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Ending:
    """`outcome` is None for a run that can be judged; else why it cannot, in one line."""

    outcome: Outcome | None
    reason: str
    infra: str | None = None  # name of the signature
    early_stop: str | None = None

    @property
    def finished(self) -> bool:
        return self.outcome is None


def classify(
    exit_: Exit, steps: int, planned: int, *, stopped_by: str | None = None, early_stop: str | None = None, error: str | None = None, tail: str = ""
) -> Ending:
    """The ending of a run with `steps` of `planned` recorded.

    `stopped_by` says which limit ended it, `error` is its last error event, `tail` the end of its output. Where the run said why it ended, its words alone are
    searched for a signature: a warning about a port in the output does not make a retry of a loss that is not finite.
    """
    count = f"{steps}/{planned} steps"
    if stopped_by is not None:
        return Ending(Outcome.INCOMPLETE, f"{count}: {stopped_by}")
    if exit_.code == 0 and steps >= planned:
        return Ending(None, count)
    if exit_.code == 0 and early_stop is not None:
        return Ending(None, f"{count}, stopped early: {early_stop}", early_stop=early_stop)
    told = error or last_words(tail)
    what = f"{count}, {exit_}" + (f": {told}" if told else "")
    if exit_.code == 0:
        return Ending(Outcome.INCOMPLETE, f"{count}, ended by itself without an error" + (f": {told}" if told else ""))
    signature = infra_signature(error or tail) if exit_.signal is None else None
    if signature is not None:
        return Ending(Outcome.INFRA, f"{what} ({signature.meaning})", infra=signature.name)
    return Ending(Outcome.INCOMPLETE, what)


def infra_signature(text: str) -> Signature | None:
    """The first signature that a text shows, or None; None too where it speaks of numbers."""
    return None if NUMERICS.search(text) else next((signature for signature in INFRA_SIGNATURES if signature.pattern.search(text)), None)


def last_words(tail: str) -> str:
    """The last line of a run's output that is not empty, without colours, shortened."""
    lines = [line.strip() for line in COLOURS.sub("", tail).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
