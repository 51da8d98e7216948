"""Where the fault probably sits: a ranked list, each with the line of evidence. A hint for a person; it changes no outcome.

Direct evidence stands first, in the order in which it explains what follows it: an error, numbers that are not finite, a digest that does not match, a log-prob
gap at the first step, a gap that jumps at a sync, the sampler statistic. Then the shape of the curve, then the other metrics, the most shifted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from reports.checks import shifts
from reports.checks.context import Case
from reports.metrics import GAP_MAX, GAP_MEAN, LEARNING_RATE, REWARD_ERRORS, SAMPLER_Z
from reports.model import Run
from reports.verdict import Check, Comparison, Resource, Suspect

JUMP = 10.0  # a gap this many times the one before (or the baseline's) is a jump
GAP_NOISE = 1e-6  # gaps below this are rounding in any dtype
FAR_SD = 4.0  # standard errors: of the sampler statistic, and of a rise before a fall
SHORT = 10  # values of the window in which a rise is looked for

Finding = tuple[list[Check], list[Comparison], list[Resource]]


def rank(case: Case, checks: list[Check], comparisons: list[Comparison], resources: list[Resource]) -> list[Suspect]:
    """Suspects, most telling first, each named once."""
    rules: tuple[Callable[[Case, Finding], Iterator[Suspect]], ...] = (
        _errors, _numerics, _digests, _step0_gap, _gap_jump, _sampler, _rewards, _trajectory, _collapse,
        _learning_rate, _first_window, _trainer, _shifted, _speed,
    )  # fmt: skip
    found: dict[str, Suspect] = {}
    for rule in rules:
        for suspect in rule(case, (checks, comparisons, resources)):
            found.setdefault(suspect.name, suspect)
    return list(found.values())


def _bad(checks: list[Check], *names: str) -> list[Check]:
    return [check for check in checks if check.name in names and check.state == "bad" and not check.run.startswith("baseline ")]


def _errors(case: Case, finding: Finding) -> Iterator[Suspect]:
    for run in case.candidates:
        errors = run.events_of("error")
        if errors:
            evidence = f"{run.name} ended with an error: {str(errors[-1].get('text', ''))[:300]}"
            yield Suspect(name=str(errors[-1].get("stage", "unknown stage")), evidence=evidence)


def _numerics(case: Case, finding: Finding) -> Iterator[Suspect]:
    for check in _bad(finding[0], "finite"):
        yield Suspect(name="numerics of the trainer", evidence=check.text)


def _digests(case: Case, finding: Finding) -> Iterator[Suspect]:
    for check in _bad(finding[0], "weight digests"):
        yield Suspect(name="weight sync", evidence=check.text)


def _step0_gap(case: Case, finding: Finding) -> Iterator[Suspect]:
    bad = _bad(finding[0], "log-prob gap at the first step")
    ours, theirs = _at_first(case.candidates, GAP_MAX), _at_first(case.baseline, GAP_MAX)
    if bad:
        yield Suspect(name="inference or weight conversion", evidence=f"{bad[0].text}: before any update the engine does not compute what the trainer computes")
    elif ours is not None and theirs is not None and ours > max(JUMP * theirs, GAP_NOISE):
        yield Suspect(
            name="inference or weight conversion",
            evidence=f"log-prob gap at the first step is {ours:.3g}, the baseline's {theirs:.3g}",
            strength=ours / max(theirs, GAP_NOISE),
        )


def _gap_jump(case: Case, finding: Finding) -> Iterator[Suspect]:
    usual = max((run.facts[GAP_MEAN].largest for run in case.baseline if GAP_MEAN in run.facts), default=None)
    for run in case.candidates:
        curve = run.curves.get(GAP_MEAN)
        if curve is None or len(curve.values) < 2:
            continue
        first, later = abs(float(curve.values[0])), np.abs(curve.values[1:])
        limit = max(JUMP * max(first, GAP_NOISE), 0.0 if usual is None else JUMP * usual)
        over = np.flatnonzero(later > limit)
        if len(over):
            step, value = int(curve.steps[1 + over[0]]), float(later[over[0]])
            after = f", of {run.syncs.total} recorded weight syncs" if run.syncs.total else ""
            yield Suspect(
                name="weight sync",
                evidence=f"{run.name}: the log-prob gap is {first:.3g} at step {curve.steps[0]} and {value:.3g} at step {step}: engine and trainer "
                f"part after an update{after}",
                strength=value / max(first, GAP_NOISE),
            )


def _sampler(case: Case, finding: Finding) -> Iterator[Suspect]:
    for check in _bad(finding[0], "sampler"):
        yield Suspect(name="sampling", evidence=check.text, strength=check.value)
    usual = max((found.score for run in case.baseline if (found := run.facts.get(SAMPLER_Z)) and found.score is not None), default=None)
    for run in case.candidates:
        score = run.facts[SAMPLER_Z].score if SAMPLER_Z in run.facts else None
        if score is not None and usual is not None and score > max(2 * usual, FAR_SD):
            evidence = f"{run.name}: sampled tokens are {score:.1f} standard errors from the assumed distribution, the baseline at most {usual:.1f}"
            yield Suspect(name="sampling", evidence=evidence, strength=score)


def _rewards(case: Case, finding: Finding) -> Iterator[Suspect]:
    ours, theirs = shifts.mean(case.candidates, REWARD_ERRORS), shifts.mean(case.baseline, REWARD_ERRORS)
    if ours and ours > 2 * (theirs or 0.0):
        yield Suspect(name="reward", evidence=f"{ours:.3g} answers a step could not be scored, {theirs or 0:.3g} in the baseline")


def _trajectory(case: Case, finding: Finding) -> Iterator[Suspect]:
    for check in _bad(finding[0], "trajectory, pointwise", "trajectory, mean"):
        yield Suspect(name="numerics: the run does not reproduce its reference", evidence=check.text, strength=check.value)


def _collapse(case: Case, finding: Finding) -> Iterator[Suspect]:
    """A fall from the start is another fault than a late one: nothing was ever learned."""
    unlearned = {check.run for check in _bad(finding[0], "learning") if (check.value or 0.0) < 0 and not _rose(case, check.run)}
    for check in _bad(finding[0], "collapse"):
        if check.run in unlearned:
            name = "direction of the update: sign of the advantage, or rewards paired with the wrong answers"
            yield Suspect(name=name, evidence=f"{check.text}; it falls from the start")
        else:
            rose = _rose(case, check.run)
            yield Suspect(name="late collapse", evidence=f"{check.text}{'; ' + rose if rose else ''}")


def _rose(case: Case, name: str) -> str:
    """Where a run's best short window lies far above its very first: then it had learned before it fell. Empty where it never rose."""
    from reports.stats.summary import best_window_end, residual_sd

    run = next(run for run in case.candidates if run.name == name)
    values, width = case.values([run])[0] * case.sign, min(int(case.grid.first.sum()), SHORT)
    end = best_window_end(values, width)
    best, start = float(values[end - width + 1 : end + 1].mean()), float(values[:width].mean())
    if not best - start > FAR_SD * float(residual_sd(values)) * np.sqrt(2 / width):
        return ""
    return f"it had risen from {start * case.sign:.3g} to {best * case.sign:.3g} by step {case.common[end]}"


def _learning_rate(case: Case, finding: Finding) -> Iterator[Suspect]:
    ours, theirs = shifts.mean(case.candidates, LEARNING_RATE), shifts.mean(case.baseline, LEARNING_RATE)
    if ours is not None and theirs and abs(ours / theirs - 1) > 0.01:
        evidence = f"mean learning rate {ours:.3g}, the baseline's {theirs:.3g} ({ours / theirs:.3g}×)"
        yield Suspect(name="learning rate", evidence=evidence, strength=ours / theirs)


def _first_window(case: Case, finding: Finding) -> Iterator[Suspect]:
    for comparison in finding[1]:
        if comparison.statistic == "first" and comparison.state == "outside":
            name = "start of the run: weights, prompts or sampling"
            yield Suspect(name=name, evidence=f"{comparison.text}: the policy or its sampler differs before training can matter")


def _trainer(case: Case, finding: Finding) -> Iterator[Suspect]:
    if not _off(finding) or list(_gap_jump(case, finding)) or list(_step0_gap(case, finding)):
        return
    if any(GAP_MEAN in run.facts for run in case.candidates):
        evidence = "the log-prob gap is flat, so the engine holds the trainer's weights; the reward is off all the same"
        yield Suspect(name="trainer, data or reward", evidence=evidence)
    else:
        yield Suspect(name="unknown", evidence=f"{GAP_MEAN} is not recorded: trainer, data and weight sync cannot be told apart")


def _shifted(case: Case, finding: Finding) -> Iterator[Suspect]:
    if _off(finding):
        yield from shifts.suspects(case)


def _speed(case: Case, finding: Finding) -> Iterator[Suspect]:
    slow = [resource for resource in finding[2] if resource.worse]
    if slow:
        alike = bool(finding[1]) and all(comparison.state == "inside" for comparison in finding[1] if comparison.gates)
        equal = "the curve is equal; " if alike else ""
        worst = max(max(resource.ratio, 1 / resource.ratio) for resource in slow)
        yield Suspect(name="performance", evidence=equal + "; ".join(resource.text for resource in slow), strength=worst)


def _off(finding: Finding) -> bool:
    outside = any(comparison.state == "outside" and comparison.gates for comparison in finding[1])
    return outside or bool(_bad(finding[0], "learning", "collapse"))


def _at_first(runs: Sequence[Run], metric: str) -> float | None:
    values = [abs(run.facts[metric].first) for run in runs if metric in run.facts]
    return max(values) if values else None
