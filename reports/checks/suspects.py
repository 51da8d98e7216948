"""Where the fault probably sits: a ranked list, each with the line of evidence. A hint for a person; it changes no outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from reports.checks.context import Case
from reports.checks.exactness import sampler_score
from reports.metrics import GAP_MAX, GAP_MEAN, LEARNING_RATE, REWARD_ERRORS, SAMPLER_Z, title
from reports.model import Run
from reports.verdict import Check, Comparison, Resource, Suspect

JUMP = 10.0  # a gap this many times the one before (or the baseline's) is a jump
GAP_NOISE = 1e-6  # gaps below this are rounding in any dtype
SHIFT_SD = 4.0  # a metric this many baseline standard deviations away is named as evidence

Finding = tuple[list[Check], list[Comparison], list[Resource]]


def rank(case: Case, checks: list[Check], comparisons: list[Comparison], resources: list[Resource]) -> list[Suspect]:
    """Suspects, most telling first, each named once."""
    rules: tuple[Callable[[Case, Finding], Iterator[Suspect]], ...] = (
        _errors, _numerics, _digests, _step0_gap, _gap_jump, _sampler, _rewards, _collapse, _learning_rate, _first_window, _trainer, _shifted, _speed,
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
        errors = [event for event in run.events if event.get("event") == "error"]
        if errors:
            yield Suspect(
                name=str(errors[-1].get("stage", "unknown stage")), evidence=f"{run.name} ended with an error: {str(errors[-1].get('text', ''))[:300]}"
            )


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
        yield Suspect(name="inference or weight conversion", evidence=f"log-prob gap at the first step is {ours:.3g}, the baseline's {theirs:.3g}")


def _gap_jump(case: Case, finding: Finding) -> Iterator[Suspect]:
    usual = max((float(np.abs(run.curves[GAP_MEAN].values).max()) for run in case.baseline if GAP_MEAN in run.curves), default=None)
    for run in case.candidates:
        curve = run.curves.get(GAP_MEAN)
        if curve is None or len(curve.values) < 2:
            continue
        first, later = abs(float(curve.values[0])), np.abs(curve.values[1:])
        limit = max(JUMP * max(first, GAP_NOISE), 0.0 if usual is None else JUMP * usual)
        over = np.flatnonzero(later > limit)
        if len(over):
            step, value = int(curve.steps[1 + over[0]]), float(later[over[0]])
            yield Suspect(
                name="weight sync",
                evidence=f"{run.name}: the log-prob gap is {first:.3g} at step {curve.steps[0]} and {value:.3g} at step {step}, largest {later.max():.3g}: "
                "engine and trainer part after an update",
            )


def _sampler(case: Case, finding: Finding) -> Iterator[Suspect]:
    for check in _bad(finding[0], "sampler"):
        yield Suspect(name="sampling", evidence=check.text)
    usual = max((sampler_score(run.curves[SAMPLER_Z].values) for run in case.baseline if SAMPLER_Z in run.curves), default=None)
    for run in case.candidates:
        if SAMPLER_Z in run.curves and usual is not None:
            score = sampler_score(run.curves[SAMPLER_Z].values)
            if score > max(2 * usual, SHIFT_SD):
                yield Suspect(
                    name="sampling",
                    evidence=f"{run.name}: sampled tokens are {score:.1f} standard errors from the assumed distribution, the baseline at most {usual:.1f}",
                )


def _rewards(case: Case, finding: Finding) -> Iterator[Suspect]:
    ours, theirs = _mean(case.candidates, REWARD_ERRORS), _mean(case.baseline, REWARD_ERRORS)
    if ours and ours > 2 * (theirs or 0.0):
        yield Suspect(name="reward", evidence=f"{ours:.3g} answers a step could not be scored, {theirs or 0:.3g} in the baseline")


def _collapse(case: Case, finding: Finding) -> Iterator[Suspect]:
    """A fall from the start is another fault than a late one: nothing was ever learned."""
    unlearned = {check.run for check in _bad(finding[0], "learning") if (check.value or 0.0) < 0}
    for check in _bad(finding[0], "collapse"):
        if check.run in unlearned:
            yield Suspect(
                name="direction of the update: sign of the advantage, or rewards paired with the wrong answers",
                evidence=f"{check.text}; it falls from the start",
            )
        else:
            yield Suspect(name="late collapse", evidence=check.text)


def _learning_rate(case: Case, finding: Finding) -> Iterator[Suspect]:
    ours, theirs = _mean(case.candidates, LEARNING_RATE), _mean(case.baseline, LEARNING_RATE)
    if ours is not None and theirs and abs(ours / theirs - 1) > 0.01:
        yield Suspect(name="learning rate", evidence=f"mean learning rate {ours:.3g}, the baseline's {theirs:.3g} ({ours / theirs:.3g}×)")


def _first_window(case: Case, finding: Finding) -> Iterator[Suspect]:
    for comparison in finding[1]:
        if comparison.statistic == "first" and comparison.state == "outside":
            yield Suspect(
                name="start of the run: weights, prompts or sampling",
                evidence=f"{comparison.text}: the policy or its sampler differs before training can matter",
            )


def _shifted(case: Case, finding: Finding) -> Iterator[Suspect]:
    """Other metrics that lie far from the baseline's, in one line."""
    if not _off(finding):
        return
    words = []
    for metric in (
        "train/grad_norm",
        "train/entropy",
        "train/ppo_kl",
        "train/kl_ref",
        "rollout/response_len_mean",
        "rollout/truncated_frac",
        "spec/accept_len",
    ):
        theirs = [value for run in case.baseline if (value := _mean([run], metric)) is not None]
        ours = _mean(case.candidates, metric)
        if ours is None or len(theirs) < 3:
            continue
        mean, sd = float(np.mean(theirs)), float(np.std(theirs, ddof=1))
        if abs(ours - mean) > SHIFT_SD * max(sd, 1e-9 + 0.01 * abs(mean)):
            words.append((abs(ours - mean) / max(sd, 1e-12), f"{title(metric)} {ours:.4g} against {mean:.4g}"))
    if words:
        yield Suspect(name="see the metrics that moved", evidence="; ".join(text for _, text in sorted(words, reverse=True)))


def _trainer(case: Case, finding: Finding) -> Iterator[Suspect]:
    if not _off(finding) or list(_gap_jump(case, finding)) or list(_step0_gap(case, finding)):
        return
    if any(GAP_MEAN in run.curves for run in case.candidates):
        yield Suspect(
            name="trainer, data or reward", evidence="the log-prob gap is flat, so the engine holds the trainer's weights; the reward is off all the same"
        )
    else:
        yield Suspect(name="unknown", evidence=f"{GAP_MEAN} is not recorded: trainer, data and weight sync cannot be told apart")


def _speed(case: Case, finding: Finding) -> Iterator[Suspect]:
    slow = [resource for resource in finding[2] if resource.worse]
    if slow and not _off(finding):
        yield Suspect(name="performance", evidence="; ".join(resource.text for resource in slow))


def _off(finding: Finding) -> bool:
    return any(comparison.state == "outside" for comparison in finding[1]) or bool(_bad(finding[0], "learning"))


def _at_first(runs: Sequence[Run], metric: str) -> float | None:
    values = [abs(float(run.curves[metric].values[0])) for run in runs if metric in run.curves and len(run.curves[metric].values)]
    return max(values) if values else None


def _mean(runs: Sequence[Run], metric: str) -> float | None:
    """Mean over runs of a metric's mean over steps; None where no run has it."""
    values = [float(np.nanmean(run.curves[metric].values)) for run in runs if metric in run.curves and np.isfinite(run.curves[metric].values).any()]
    return float(np.mean(values)) if values else None
