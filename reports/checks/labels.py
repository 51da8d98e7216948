"""Do the runs belong to what they are compared with: science hash, reward, seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matrix.outcome import Outcome
from reports.checks.context import Case
from reports.checks.integrity import FIRST_CANDIDATE_SEED, reward_values_in_range
from reports.model import Run
from reports.verdict import Check


def check(case: Case) -> Iterator[Check]:
    yield from _science(case)
    yield from _reward(case)
    if case.rule.paired:
        yield from _pairs(case)
    elif case.rule.exactness.trajectory is not None:
        yield from _same_seed(case)
    else:
        yield from _seeds(case)


def _pairs(case: Case) -> Iterator[Check]:
    """A paired rule needs for each candidate the baseline run of its seed."""
    paired = {index for index, _ in case.pairs}
    for index, run in enumerate(case.candidates):
        text = f"{run.name}: seed {run.seed}" + (
            "" if index in paired else "; the rule is paired, and no baseline run of this seed (or of its label `pair`) is left"
        )
        yield _check("pair", run.name, index in paired or not case.baseline, Outcome.INVALID, text, missing=run.seed is None)


def _same_seed(case: Case) -> Iterator[Check]:
    """Who reproduces a trajectory must have run its seed."""
    band = case.rule.exactness.trajectory
    for run in case.candidates:
        if band is not None and band.seed is not None and run.seed is not None:
            good = run.seed == band.seed
            yield _check(
                "seed", run.name, good, Outcome.INVALID, f"{run.name}: seed {run.seed}" + ("" if good else f"; the trajectory of seed {band.seed} is wanted")
            )


def _science(case: Case) -> Iterator[Check]:
    for run in case.candidates:
        claim = case.declared.science_hash or run.labels.get("declared_science_hash")
        if claim is not None:
            yield _same_hash(run.name, [run], str(claim), "the declared recipe has", Outcome.INVALID, case)
    if case.declared.science_hash is None:
        yield from _sides_agree(case)
    elif case.baseline:
        yield _same_hash("baseline", case.baseline, case.declared.science_hash, "the recipe changed since this baseline: it now has", Outcome.NO_BASELINE, case)


def _same_hash(who: str, runs: Sequence[Run], claim: str, words: str, outcome: Outcome, case: Case) -> Check:
    """Whether all `runs` have the claimed hash; the message lists the runs by name where they differ among themselves."""
    found = {run.science_hash for run in runs}
    if case.declared.assume_comparable and found == {None}:
        return _check("science hash", who, True, outcome, f"{who}: no science hash; that it is {short(claim)} is the caller's claim")
    good = found == {claim}
    hashes = (
        short(runs[0].science_hash) if len(found) == 1 else ", ".join(f"{short(run.science_hash)} ({run.name})" for run in runs if run.science_hash != claim)
    )
    text = f"{who}: science hash {hashes}" + ("" if good else f", {words} {short(claim)}")
    return _check("science hash", who, good, outcome, text, missing=None in found)


def _sides_agree(case: Case) -> Iterator[Check]:
    if not case.baseline:
        return
    theirs = {run.science_hash for run in case.baseline}
    ours = {run.science_hash for run in case.candidates} or theirs
    if (ours == theirs and len(ours) == 1) or (case.declared.assume_comparable and None in ours | theirs):
        known = next(iter(ours - {None}), None)
        yield _check("science hash", "", True, Outcome.INVALID, f"science hash {short(known)} on both sides" if known else UNPROVEN)
        return
    words = f"science hashes differ: candidates {', '.join(sorted(map(short, ours)))}; baseline {', '.join(sorted(map(short, theirs)))}"
    yield _check(
        "science hash", "", False, Outcome.INVALID, f"{words} (runs without one are compared only with --assume-comparable)", missing=None in ours | theirs
    )


UNPROVEN = "no science hash on one side or both: that the runs are comparable is the caller's claim"


def _reward(case: Case) -> Iterator[Check]:
    declared_id, declared_range = case.declared.reward_id, case.declared.reward_range
    reference = next((reward for run in case.baseline if (reward := _labelled_reward(run))), {})
    want_id = declared_id or reference.get("id")
    want_range = list(declared_range) if declared_range else reference.get("range")
    for run in case.candidates:
        own = _labelled_reward(run)
        if want_id is not None:
            yield _same_reward(run, own, want_id, want_range, bool(case.declared.assume_comparable))
        limits = want_range or own.get("range")
        if limits:
            yield reward_values_in_range(run, float(limits[0]), float(limits[1]), run.name)


def _labelled_reward(run: Run) -> dict[str, Any]:
    reward = run.labels.get("reward")
    return reward if isinstance(reward, dict) else {}


def _same_reward(run: Run, own: dict[str, Any], want_id: str, want_range: Any, vouched: bool) -> Check:
    if not own and vouched:
        return _check("reward", run.name, True, Outcome.INVALID, f"{run.name}: no reward id; {want_id} is the caller's claim")
    same_range = want_range is None or _floats(own.get("range")) == _floats(want_range)
    good = own.get("id") == want_id and same_range
    text = f"{run.name}: reward {own.get('id')} {own.get('range')}" + (
        "" if good else f", expected {want_id} {want_range}: another definition or scale is not comparable"
    )
    return _check("reward", run.name, good, Outcome.INVALID, text, missing=not own)


def _floats(values: Any) -> list[float] | None:
    return [float(value) for value in values] if isinstance(values, (list, tuple)) else None


def _seeds(case: Case) -> Iterator[Check]:
    """Baseline seeds are 0-99, candidates 100 and up: a candidate can then never be its own baseline. Held for runs of a declared cell."""
    for run in case.candidates:
        if run.labels.get("cell"):
            good = run.seed is not None and run.seed >= FIRST_CANDIDATE_SEED
            text = f"{run.name}: seed {run.seed}" + ("" if good else f"; candidates take seeds from {FIRST_CANDIDATE_SEED} up, lower ones belong to baselines")
            yield _check("seed", run.name, good, Outcome.INVALID, text, missing=run.seed is None)
    for run in case.baseline:
        if run.labels.get("cell"):
            good = run.seed is not None and 0 <= run.seed < FIRST_CANDIDATE_SEED
            text = f"baseline {run.name}: seed {run.seed}" + ("" if good else f"; baselines take seeds 0 to {FIRST_CANDIDATE_SEED - 1}")
            yield _check("seed", "baseline " + run.name, good, Outcome.INVALID, text, missing=run.seed is None)


def same_seed_twice(case: Case) -> Iterator[Check]:
    """Two runs of one seed saw the same prompts: they tell less about other seeds than two runs do. (Pairs and reproductions are meant to.)"""
    if case.rule.paired or case.rule.exactness.trajectory is not None:
        return
    for side, runs in (("", case.candidates), ("baseline ", case.baseline)):
        known: dict[int, Run] = {}
        for run in runs:
            if run.seed is not None and run.labels.get("cell") and known.setdefault(run.seed, run) is not run:
                text = f"{side}{run.name} and {known[run.seed].name} have one seed, {run.seed}: they are not two independent runs"
                yield _check("seed", side + run.name, False, Outcome.INVALID, text)


def short(science_hash: str | None) -> str:
    return "none" if science_hash is None else science_hash[:12]


def _check(name: str, run: str, good: bool, outcome: Outcome, text: str, missing: bool = False) -> Check:
    return Check(stage="integrity", name=name, run=run, state="good" if good else "missing" if missing else "bad", outcome=outcome, text=text)
