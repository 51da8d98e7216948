"""One cell, whole: lease its devices, make its runs, judge them, add a seed while the verdict asks for one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.leases import DevicePool, LeaseError
from e2e.live import Display
from e2e.machine import Offer, offer, wait_for_memory
from e2e.prepare import prepare
from e2e.records import RunRecord, read_record
from e2e.run_plan import TRAIN, RunPlan, plan_run
from e2e.runner import own, reusable, run
from e2e.verdict import CellVerdict, JudgeCell, Unfinished, judge_cell, unjudged
from matrix.baseline_files import cell_baseline_problems
from matrix.loader import DeclaredCell, Matrix
from matrix.outcome import Outcome, most_severe
from matrix.prerequisites import lacking, lacking_files
from matrix.problem import MatrixError

LEASE_WAIT_S = 24 * 3600.0
MEMORY_WAIT_S = 3600.0


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
    same_code: bool = True  # False: a finished run counts whatever code made it (baselines)


def run_cell(matrix: Matrix, cell: DeclaredCell, options: Options, display: Display, judge: JudgeCell = judge_cell) -> CellVerdict:
    """The cell's verdict (with `judge=False` in the options, only whether its runs finished); NOT_RUN with the reason where it cannot run here.

    Ctrl-C passes through after the run has been ended.
    """
    started = time.monotonic()
    try:
        if options.judge_only:
            verdict = _judge_what_lies(matrix, cell, options, judge)
        elif lacks := lacking(matrix, cell):
            verdict = unjudged(matrix, cell, options.root, Outcome.NOT_RUN, "; ".join(lacks), keep=options.judge)
        else:
            verdict = _make_and_judge(matrix, cell, options, display, judge)
    except MatrixError as error:  # declarations that contradict each other, of this cell alone
        verdict = unjudged(matrix, cell, options.root, Outcome.INVALID, str(error.problems[0]), keep=options.judge)
    return replace(verdict, seconds=time.monotonic() - started)


def candidate_seeds(cell: DeclaredCell, count: int) -> tuple[int, ...]:
    first = cell.recipe.value.seeds.candidates_from
    return tuple(range(first, first + count))


def _judge_what_lies(matrix: Matrix, cell: DeclaredCell, options: Options, judge: JudgeCell) -> CellVerdict:
    """Judge the runs in the results root as they lie, whoever made them. A seed that was asked for, or that the recipe begins with, and is not there counts."""
    place, recipe = options.root / cell.key, cell.recipe.value
    lying = sorted(int(run.name.removeprefix("seed-")) for run in place.glob("seed-*") if run.name.removeprefix("seed-").isdigit())
    candidates = [seed for seed in lying if seed >= recipe.seeds.candidates_from]
    if not options.seeds and not candidates:
        return unjudged(matrix, cell, options.root, Outcome.NOT_RUN, f"no run of this cell lies in {place}")
    wanted = options.seeds or tuple(sorted({*candidates, *candidate_seeds(cell, recipe.seeds.initial)}))
    missing = [Unfinished(seed, Outcome.NOT_RUN, f"no run lies in {place / f'seed-{seed}'}", 0) for seed in wanted if seed not in lying]
    records = {seed: read_record(place / f"seed-{seed}") for seed in wanted if seed in lying}
    return _verdict(matrix, cell, options, records, judge, missing)


def _make_and_judge(matrix: Matrix, cell: DeclaredCell, options: Options, display: Display, judge: JudgeCell) -> CellVerdict:
    recipe = cell.recipe.value
    most = max(recipe.judge.max_seeds, recipe.seeds.initial)
    seeds = options.seeds or candidate_seeds(cell, recipe.seeds.initial)
    more = [] if options.seeds else [seed for seed in candidate_seeds(cell, most) if seed not in seeds]
    if options.judge and (faults := cell_baseline_problems(matrix, cell)):
        return unjudged(matrix, cell, options.root, Outcome.INVALID, f"the baseline is broken, so nothing was run: {faults[0]}")
    records: dict[int, RunRecord | None] = {}
    while True:
        for seed in seeds:
            if seed in records:
                continue
            try:
                records[seed] = _run_one(matrix, cell, seed, options, display)
            except LeaseError as error:
                return _not_run(matrix, cell, options, records, Unfinished(seed, Outcome.NOT_RUN, str(error), 0), judge)
        if not options.judge:
            return _runs_only(cell, records)
        verdict = _verdict(matrix, cell, options, records, judge)
        if verdict.outcome is not Outcome.INCONCLUSIVE or not more:
            return verdict
        display.say(f"{cell}  inconclusive after {len(records)} of at most {most} seeds: adding seed {more[0]}")
        seeds = (*seeds, more.pop(0))


def _run_one(matrix: Matrix, cell: DeclaredCell, seed: int, options: Options, display: Display) -> RunRecord:
    """The run of one seed: the one that lies there where it is the same, else made on leased devices. Raises LeaseError where it cannot run here."""
    plan = plan_run(matrix, cell, seed, options.root, options.command, options.overrides)
    plan.same_code = options.same_code
    with own(plan, display):
        if not options.rerun and (found := reusable(plan, display)):
            return found
        return _run_leased(matrix, plan, options, display)


def _run_leased(matrix: Matrix, plan: RunPlan, options: Options, display: Display) -> RunRecord:
    hardware, holder = plan.cell.hardware.value, f"{plan.cell} seed {plan.seed}"
    here = offer(hardware)
    if lacks := unavailable(plan.cell, plan.devices, here) or "; ".join(lacking_files(matrix, plan.cell)):
        raise LeaseError(lacks)
    pool = DevicePool(hardware.platform, here.devices, hardware.contiguous, options.lease_directory)
    say: Callable[[str], None] = lambda text: display.say(f"{holder}  {text}")  # noqa: E731
    with pool.lease(plan.devices, holder, LEASE_WAIT_S, say) as plan.lease:
        if hardware.platform == "cpu" and hardware.device_memory_gib:
            wait_for_memory(plan.devices * hardware.device_memory_gib, holder, MEMORY_WAIT_S, say)
        prepare(plan, say)
        return run(plan, display)


def unavailable(cell: DeclaredCell, devices: int, here: Offer) -> str | None:
    """Why a run on so many devices cannot be made with what is here, however long one waits; None where it can."""
    hardware = cell.hardware.value
    if here.lacks:
        return here.lacks
    if devices > hardware.devices_per_node:
        nodes = -(-devices // hardware.devices_per_node)
        commands = f"python -m matrix show {cell} prints the commands"
        return f"takes {devices} devices, {nodes} nodes of {hardware.name}: the runner leases those of one machine; {commands}"
    if devices > len(here.devices):
        return f"needs {devices} devices of {hardware.name}; {len(here.devices)} may be used here ({list(here.devices)})"
    return None


def _not_run(matrix: Matrix, cell: DeclaredCell, options: Options, records: dict[int, RunRecord | None], missing: Unfinished, judge: JudgeCell) -> CellVerdict:
    """The cell of which a run could not be made here: what was made before is judged with it."""
    if records and options.judge:
        return _verdict(matrix, cell, options, records, judge, [missing])
    return unjudged(matrix, cell, options.root, Outcome.NOT_RUN, missing.reason, tuple(records), keep=options.judge)


def _verdict(
    matrix: Matrix, cell: DeclaredCell, options: Options, records: dict[int, RunRecord | None], judge: JudgeCell, missing: Sequence[Unfinished] = ()
) -> CellVerdict:
    looks_done = max(0, len(records) - cell.recipe.value.seeds.initial)
    return judge(matrix, cell, options.root, tuple(records), looks_done, (*_unfinished(records), *missing))


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
    evidence = cell.rule.evidence
    if bad:
        reasons = tuple(f"seed {run.seed}: {run.reason}" for run in bad)
        return CellVerdict(str(cell), most_severe([run.outcome for run in bad]), reasons, tuple(records), evidence)
    return CellVerdict(str(cell), None, (f"{len(records)} runs finished, not judged",), tuple(records), evidence)
