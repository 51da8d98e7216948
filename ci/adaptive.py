"""Looks at a cell's runs inside a build: judge, and ask for one more seed while the verdict is INCONCLUSIVE, the recipe allows it and the tier can pay for it.

Meta-data of the build (looks are taken one after the other, so that what is read is still true when it is written):
  vime:seed:<cell key>:<seed>   device-hours of a seed that was added
  vime:look:<cell key>          the last look that was asked for (absent: 1)
  vime:held:<cell key>          why no further seed was asked for
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from ci import buildkite
from ci.keys import judge_key
from ci.pipeline import as_data, next_look, seeds_of
from ci.selection import CellSteps, Selected
from ci.settings import Settings
from matrix.outcome import Outcome
from matrix.status import latest

SEED = "vime:seed:"
LOOK = "vime:look:"
HELD = "vime:held:"


def judge(cell: CellSteps, look: int, selected: Selected, settings: Settings, scope: str = "") -> Outcome:
    """Fetch the runs, judge them, upload what follows. The verdict file is the step's artifact."""
    seeds = seeds_of(cell, look)
    for seed in seeds:
        if not buildkite.fetch(f"{selected.results}/{cell.key}/seed-{seed}/**/*"):
            print(f"seed {seed} left no artifacts: its run counts as missing", flush=True)
    text = settings.commands.verdict.format(python=settings.platforms["cpu"].python, cell=cell.cell, seeds=",".join(map(str, seeds)), results=selected.results)
    done = subprocess.run(shlex.split(text), check=False)
    judged = latest(Path(selected.results) / cell.key)
    if judged is None:
        print(f"{cell.cell}: no verdict was written (exit {done.returncode})", flush=True)
        return Outcome.NOT_RUN
    print(f"{cell.cell}: {judged.outcome} after {len(seeds)} seed(s)", flush=True)
    if judged.outcome is Outcome.INCONCLUSIVE:
        _one_more(cell, look, selected, settings, scope)
    return judged.outcome


def _one_more(cell: CellSteps, look: int, selected: Selected, settings: Settings, scope: str) -> None:
    if look > len(cell.more):
        buildkite.set_meta(f"{HELD}{cell.key}", f"all {len(seeds_of(cell, look))} seeds that the recipe allows were run")
        return
    seed = cell.more[look - 1]
    name = f"{SEED}{cell.key}:{seed}"
    spent = selected.hours + sum(float(buildkite.get_meta(key) or 0) for key in buildkite.meta_keys(SEED) if key != name)
    if selected.budget is not None and spent + cell.hours > selected.budget:
        told = f"tier {selected.tier} has {selected.budget - spent:.2f} of {selected.budget:g} device-hours left, and a seed takes {cell.hours:g}"
        buildkite.set_meta(f"{HELD}{cell.key}", told)
        print(f"{cell.cell}: no further seed: {told}", flush=True)
        return
    buildkite.set_meta(name, str(cell.hours))
    buildkite.upload(next_look(cell, look + 1, selected, settings, scope), settings, known={*_runs_of(cell, look)})
    buildkite.set_meta(f"{LOOK}{cell.key}", str(look + 1))
    print(f"{cell.cell}: seed {seed} is asked for", flush=True)


def _runs_of(cell: CellSteps, look: int) -> list[str]:
    from ci.keys import run_key

    return [run_key(cell.key, seed) for seed in seeds_of(cell, look)]


def collect(round_: int, selected: Selected, settings: Settings, scope: str = "") -> list[str]:
    """After the looks of a round: wait for the next round's, or upload report and gate. Returns the keys waited for."""
    from ci.steps import closing_steps, collect_step

    asked = {cell.key: int(buildkite.get_meta(f"{LOOK}{cell.key}") or 1) for cell in selected.cells}
    waiting = [judge_key(key, round_ + 1) for key, look in asked.items() if look > round_]
    if waiting:
        steps = as_data([collect_step(round_ + 1, waiting, selected, settings, scope)])
    else:
        steps = as_data(closing_steps([], selected, settings, scope))
    buildkite.upload(steps, settings, known=set(waiting))
    return waiting


def held_back(selected: Selected) -> dict[str, str]:
    """Why cells got no further seed, by cell id."""
    names = {cell.key: cell.cell for cell in selected.cells}
    return {names[key]: buildkite.get_meta(f"{HELD}{key}") or "" for name in buildkite.meta_keys(HELD) if (key := name.removeprefix(HELD)) in names}
