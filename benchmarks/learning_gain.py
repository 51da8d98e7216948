"""How much a recipe teaches: the held-out score before the first step, the score after the last, and the gain of each run.

    python -m e2e baseline qwen3-4b.cpu.colocate@learn --seeds 0-4          # makes the runs, four to five minutes each
    python benchmarks/learning_gain.py results/baseline/qwen3-4b.cpu.colocate__learn/seed-*

Reads run directories, starts nothing. The score is greedy accuracy on prompts that are not trained on (`eval/<set>/score`).
Exit 1 when a run gains less than --least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from reports.errors import ReportError
from reports.model import Run
from reports.readers import read_run


@dataclass(frozen=True)
class Gain:
    """One run. Scores are fractions of the held-out prompts; `minutes` is the wall time of all attempts, start-up included."""

    run: str
    before: float
    halfway: float
    after: float
    gain: float
    minutes: float


def measure(run: Run, name: str) -> Gain:
    """Raises ReportError when the run has no score of its first weights or did not reach its last planned step."""
    before = [event for event in run.events if event.get("event") == "eval" and event.get("version") == 0]
    curve = run.curves.get(f"eval/{name}/score")
    if not before or f"{name}/score" not in before[0]:
        raise ReportError(
            f"{run.path}: no score of the first weights on '{name}' in events.jsonl: set eval.every and name a run directory, not a baseline's folder"
        )
    if curve is None or run.planned_steps is None or int(curve.steps[-1]) + 1 != run.planned_steps:
        at = "never" if curve is None else f"last at step {int(curve.steps[-1]) + 1}"
        raise ReportError(f"{run.path}: eval/{name}/score was measured {at}, {run.planned_steps} steps are planned: let the run finish")
    half = curve.values[curve.steps < run.planned_steps // 2]
    first, last = float(before[0][f"{name}/score"]), float(curve.values[-1])
    return Gain(run.name, first, float(half[-1]) if len(half) else first, last, last - first, _minutes(run))


def _minutes(run: Run) -> float:
    ended = [attempt for attempt in run.manifest.get("attempts", []) if attempt.get("end")]
    return sum((attempt["end"] - attempt["start"]) / 60 for attempt in ended)


def table(gains: list[Gain]) -> str:
    lines = ["| run | before | halfway | after | gain | minutes |", "|---|---|---|---|---|---|"]
    lines += [f"| {g.run} | {g.before:.3f} | {g.halfway:.3f} | {g.after:.3f} | {g.gain:+.3f} | {g.minutes:.1f} |" for g in gains]
    if len(gains) > 1:
        mean = [statistics.mean(getattr(g, key) for g in gains) for key in ("before", "halfway", "after", "gain", "minutes")]
        sd = [statistics.stdev(getattr(g, key) for g in gains) for key in ("before", "halfway", "after", "gain")]
        lines.append("| mean | {:.3f} | {:.3f} | {:.3f} | {:+.3f} | {:.1f} |".format(*mean))
        lines.append("| sd | {:.3f} | {:.3f} | {:.3f} | {:.3f} | |".format(*sd))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories")
    parser.add_argument("--set", default="heldout", help="name of the held-out set (eval.name)")
    parser.add_argument("--least", type=float, default=0.3, help="the gain every run must reach (default: 0.3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    given = parser.parse_args()
    try:
        gains = [measure(read_run(path), given.set) for path in given.runs]
    except ReportError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(gains))
    if given.json:
        given.json.write_text(json.dumps([asdict(g) for g in gains], indent=1) + "\n", encoding="utf-8")
    short = [g for g in gains if not g.gain >= given.least]
    for g in short:
        print(f"{g.run} gains {g.gain:+.3f}, less than {given.least:g}", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
