"""One cell, whole: lease its devices, make its runs, judge them, add a seed while the verdict asks for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.leases import DevicePool
from e2e.live import Display
from e2e.runner import TRAIN, RunRecord, plan_run, read_record, run
from e2e.verdict import CellVerdict, JudgeCell, Unfinished, judge_cell, unjudged
from matrix.layout import devices_needed
from matrix.loader import DeclaredCell, Matrix
from matrix.outcome import Outcome, most_severe

LEASE_WAIT_S = 24 * 3600.0


@dataclass(frozen=True)
class Options:
    """What a caller asks of a cell's run."""

    root: Path = Path("results")
    seeds: tuple[int, ...] = ()  # empty: the recipe's own
    rerun: bool = False
    judge: bool = True
    judge_only: bool = False
    command: Sequence[str] = TRAIN
    overrides: Sequence[str] = ()
    lease_directory: Path | None = None


def run_cell(matrix: Matrix, cell: DeclaredCell, options: Options, display: Display, judge: JudgeCell = judge_cell) -> CellVerdict:
    """The cell's verdict (with `judge=False` in the options, only whether its runs finished). Ctrl-C passes through after the run has been ended."""
    started = time.monotonic()
    if options.judge_only:
        verdict = _judge_what_lies(matrix, cell, options, judge)
    else:
        verdict = _make_and_judge(matrix, cell, options, display, judge)
    return replace(verdict, seconds=time.monotonic() - started)


def candidate_seeds(cell: DeclaredCell, count: int) -> tuple[int, ...]:
    first = cell.recipe.value.seeds.candidates_from
    return tuple(range(first, first + count))


def _judge_what_lies(matrix: Matrix, cell: DeclaredCell, options: Options, judge: JudgeCell) -> CellVerdict:
    """Judge the runs in the results root as they lie, whoever made them."""
    place = options.root / cell.key
    seeds = options.seeds or tuple(sorted(int(run.name.removeprefix("seed-")) for run in place.glob("seed-*") if run.name.removeprefix("seed-").isdigit()))
    seeds = tuple(seed for seed in seeds if (place / f"seed-{seed}").is_dir() and seed >= cell.recipe.value.seeds.candidates_from)
    if not seeds:
        return unjudged(matrix, cell, options.root, Outcome.NOT_RUN, f"no run of this cell lies in {place}")
    return _verdict(matrix, cell, options, {seed: read_record(place / f"seed-{seed}") for seed in seeds}, judge)


def _make_and_judge(matrix: Matrix, cell: DeclaredCell, options: Options, display: Display, judge: JudgeCell) -> CellVerdict:
    recipe = cell.recipe.value
    most = max(recipe.judge.max_seeds, recipe.seeds.initial)
    seeds = options.seeds or candidate_seeds(cell, recipe.seeds.initial)
    more = [] if options.seeds else [seed for seed in candidate_seeds(cell, most) if seed not in seeds]
    records: dict[int, RunRecord | None] = {}
    while True:
        for seed in seeds:
            if seed not in records:
                records[seed] = _run_leased(matrix, cell, seed, options, display)
        if not options.judge:
            return _runs_only(cell, records)
        verdict = _verdict(matrix, cell, options, records, judge)
        if verdict.outcome is not Outcome.INCONCLUSIVE or not more:
            return verdict
        display.say(f"{cell}  inconclusive after {len(records)} of at most {most} seeds: adding seed {more[0]}")
        seeds = (*seeds, more.pop(0))


def _run_leased(matrix: Matrix, cell: DeclaredCell, seed: int, options: Options, display: Display) -> RunRecord:
    plan = plan_run(matrix, cell, seed, options.root, options.command, options.overrides)
    hardware = cell.hardware.value
    pool = DevicePool(hardware.name, tuple(range(hardware.devices_per_node)), directory=options.lease_directory)
    say: Callable[[str], None] = lambda text: display.say(f"{cell} seed {seed}  {text}")  # noqa: E731
    with pool.lease(devices_needed(plan.config, matrix.vime), f"{cell} seed {seed}", LEASE_WAIT_S, say) as devices:
        plan.devices = devices
        return run(plan, display, rerun=options.rerun)


def _verdict(matrix: Matrix, cell: DeclaredCell, options: Options, records: dict[int, RunRecord | None], judge: JudgeCell) -> CellVerdict:
    looks_done = max(0, len(records) - cell.recipe.value.seeds.initial)
    return judge(matrix, cell, options.root, tuple(records), looks_done, _unfinished(records))


def _unfinished(records: dict[int, RunRecord | None]) -> tuple[Unfinished, ...]:
    """Runs that their record calls unfinished. A run without a record was made by hand: only its own files speak for it."""
    return tuple(
        Unfinished(seed, Outcome(record.outcome), record.reason, record.steps)
        for seed, record in records.items()
        if record is not None and record.outcome is not None
    )


def _runs_only(cell: DeclaredCell, records: dict[int, RunRecord | None]) -> CellVerdict:
    """With --no-judge: a fan-out's part, which fails when a run did not finish and says nothing of the rest."""
    bad = _unfinished(records)
    if bad:
        return CellVerdict(str(cell), most_severe([run.outcome for run in bad]), tuple(f"seed {run.seed}: {run.reason}" for run in bad), tuple(records))
    return CellVerdict(str(cell), None, (f"{len(records)} runs finished, not judged",), tuple(records))
